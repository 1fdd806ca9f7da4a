#include "scenarios.h"

namespace interleave {

void prefer_entries(u64 count) {
  SegmentView view = explorer().world().view();
  for (u64 i = 0; i < kGeometry.entry_count; ++i) {
    explorer().store(view.entries[i].reserve_sequence, i < count ? i : u64{1} << 40);
  }
  explorer().store(view.header->reserve_sequence, count);
}

void gather(Actors& actors, unsigned producers, unsigned units, u64 entries) {
  prefer_entries(entries);
  for (auto& actor : actors) {
    if (actor->process().core().slot() >= 0) continue;
    actor->join();
    if (static_cast<unsigned>(actor->process().number()) < producers) actor->set_arena(units);
  }
}

std::vector<Scenario> scenarios_of_two() {
  std::vector<Scenario> all;

  // Life of an entry.
  all.push_back({"settle while it is written, then publish",
                 {0, 1},
                 {[](Actor& e) { e.put(K); }, [](Actor& pd) { pd.settle_of(0); }},
                 [](Actors& a) { gather(a, 1, 1, 1); },
                 {0, 1},
                 2});
  all.push_back({"a whole life: put, read, settle, release",
                 {0, 1},
                 {[](Actor& e) { e.put(K); },
                  [](Actor& pd) {
                    pd.pin(K);
                    pd.settle_of(0);
                    pd.unpin();
                  }},
                 [](Actors& a) { gather(a, 1, 1, 1); },
                 {0, 1},
                 2});
  all.push_back({"two producers put the same key",
                 {0, 1},
                 {[](Actor& e) { e.put(K); }, [](Actor& f) { f.put(K); }},
                 [](Actors& a) { gather(a, 2, 1, 2); },
                 {0, 1},
                 1});
  all.push_back({"abort against an announcement and a new attempt",
                 {0, 1},
                 {[](Actor& e) {
                    if (e.reserve(K)) e.abort();
                    e.put(K);
                  },
                  [](Actor& f) { f.announce(K); }},
                 [](Actors& a) { gather(a, 1, 1, 1); },
                 {0, 1},
                 1});
  all.push_back({"announcements that publish adds, with and without a settle before",
                 {0, 1},
                 {[](Actor& e) { e.put(K, 1, true, 2); },
                  [](Actor& pd) {
                    pd.settle_of(0);
                    pd.pin(K);
                    pd.unpin();
                  }},
                 [](Actors& a) { gather(a, 1, 1, 1); },
                 {0, 1},
                 1});

  // An entry that gets another key.
  const auto was_L = [](Actors& a) {
    gather(a, 2, 1, 1);
    a[0]->put(L);
    a[0]->settle();
  };
  all.push_back({"settle by a key that the entry had before",
                 {0, 1},
                 {[](Actor& e) { e.put(K); }, [](Actor& pd) { pd.settle_key(L, 999); }},
                 was_L,
                 {0},
                 1});
  all.push_back({"announce a key that the entry had before",
                 {0, 1},
                 {[](Actor& e) { e.put(K); }, [](Actor& f) { f.announce(L); }},
                 was_L,
                 {0, 1},
                 1});
  all.push_back({"pin a key that the entry had before",
                 {0, 1},
                 {[](Actor& e) {
                    e.settle();
                    e.put(K, 0, false);
                  },
                  [](Actor& pd) {
                    pd.pin(L);
                    pd.unpin();
                  }},
                 [](Actors& a) {
                   gather(a, 1, 1, 1);
                   a[0]->put(L);
                 },
                 {0, 1},
                 1});
  all.push_back({"a token of an earlier life pins and settles nothing",
                 {0, 1},
                 {[](Actor& e) {
                    e.settle();
                    e.put(K);
                  },
                  [](Actor& pd) {
                    pd.pin_token(*pd.token, L);
                    pd.settle();
                    pd.unpin();
                  }},
                 [](Actors& a) {
                   gather(a, 1, 1, 1);
                   a[0]->put(L);
                   a[1]->token = a[0]->token;
                   a[1]->token_request = a[0]->token_request;
                 },
                 {},
                 0});
  all.push_back({"the generation starts again at zero",
                 {0, 1},
                 {[](Actor& e) {
                    e.settle();
                    e.put(K, 0, false);
                  },
                  [](Actor& pd) {
                    pd.pin(L);
                    pd.unpin();
                    pd.pin(K);
                    pd.unpin();
                  }},
                 [](Actors& a) {
                   gather(a, 1, 1, 1);
                   u64& word = explorer().world().view().entries[0].word;
                   explorer().store(word, Word{State::kFree, kGenerations - 2, 0, 0}.pack());
                   a[0]->put(L);
                 },
                 {1},
                 1});

  all.push_back({"find a key that the entry had before",
                 {0, 1},
                 {[](Actor& e) {
                    e.settle();
                    e.put(K, 1);
                  },
                  [](Actor& visitor) {
                    visitor.find(K);
                    visitor.find(kOtherTwin);
                  }},
                 [](Actors& a) {
                   gather(a, 1, 1, 1);
                   a[0]->put(kOtherTwin);
                 },
                 {0},
                 1});
  all.push_back({"two keys with the same tag",
                 {0, 1},
                 {[](Actor& e) { e.put(K); },
                  [](Actor& f) {
                    f.announce(kOtherTwin);
                    f.find(kOtherTwin);
                    f.pin(kOtherTwin);
                    f.unpin();
                    f.put(kOtherTwin, 0, false);
                  }},
                 [](Actors& a) {
                   explorer().truth().expect(
                       probe(digest_of(K), 2).tag == probe(digest_of(kOtherTwin), 2).tag,
                       "these keys were to share a tag");
                   gather(a, 2, 1, 2);
                 },
                 {0},
                 1});

  // Announcements and their deadline.
  const auto overdue = [](Actors& a) {
    gather(a, 1, 1, 1);
    a[0]->put(K);
    a[0]->tick();
  };
  all.push_back({"announce against expiry",
                 {0, 1},
                 {[](Actor& e) { e.announce(K); }, [](Actor& timer) { timer.maintain(); }},
                 overdue,
                 {0, 1},
                 1});
  all.push_back({"two announce the same key for different times",
                 {0, 1},
                 {[](Actor& e) { e.announce(K, 1, 1); }, [](Actor& f) { f.announce(K, 1, 3); }},
                 [](Actors& a) {
                   gather(a, 2, 1, 1);
                   a[0]->put(K);
                 },
                 {0, 1},
                 1});
  all.push_back({"expiry against a reader",
                 {0, 1},
                 {[](Actor& pd) {
                    pd.pin(K);
                    pd.settle_of(0);
                    pd.unpin();
                  },
                  [](Actor& timer) { timer.maintain(); }},
                 overdue,
                 {0, 1},
                 1});
  all.push_back({"an announcement on a hit against the last reader",
                 {0, 1},
                 {[](Actor& e) { e.announce(K); },
                  [](Actor& pd) {
                    pd.pin(K);
                    pd.settle();
                    pd.unpin();
                  }},
                 [](Actors& a) {
                   gather(a, 1, 1, 1);
                   a[0]->put(K);
                   // Where the reader finds its token, before the producer announces again.
                   a[1]->token = a[0]->token;
                   a[1]->token_request = a[0]->token_request;
                 },
                 {0, 1},
                 1});
  all.push_back({"a full counter is cleared by its deadline only",
                 {0, 1},
                 {[](Actor& e) {
                    e.announce(K, 3);
                    e.settle(3);
                  },
                  [](Actor& f) {
                    f.announce(K, 3);
                    f.settle(3);
                  }},
                 [](Actors& a) {
                   gather(a, 1, 1, 1);
                   a[0]->put(K, kMaxAnnounced - 2);
                 },
                 {0},
                 1});

  // Eviction and cleaning up.
  all.push_back({"eviction against a reader",
                 {0, 1},
                 {[](Actor& e) { e.put(L); },
                  [](Actor& pd) {
                    pd.pin(K);
                    pd.unpin();
                  }},
                 [](Actors& a) {
                   gather(a, 1, 1, 1);
                   a[0]->put(K, 0, false);
                 },
                 {0, 1},
                 1});
  all.push_back({"eviction against an announcement",
                 {0, 1},
                 {[](Actor& e) { e.put(L); },
                  [](Actor& f) {
                    f.announce(K);
                    f.settle();
                  }},
                 [](Actors& a) {
                   gather(a, 1, 1, 1);
                   a[0]->put(K, 0, false);
                 },
                 {0, 1},
                 1});
  all.push_back({"a dead writer's key is taken over",
                 {0, 1},
                 {[](Actor& e) { e.put(K); },
                  [](Actor& f) {
                    f.announce(K);
                    f.put(K);
                  }},
                 [](Actors& a) { gather(a, 2, 1, 2); },
                 {0},
                 1});
  all.push_back({"two clean up after the same death",
                 {0, 1},
                 {[](Actor& a) { a.maintain(); }, [](Actor& b) { b.maintain(); }},
                 [](Actors& a) {
                   gather(a, 1, 2, 2);
                   a[0]->put(K);
                   a[0]->reserve(L);
                   a[1]->pin(K);
                 },
                 {0, 1},
                 2,
                 true});
  all.push_back({"a slot changes hands while a cleaner looks",
                 {1, 2, 0},
                 {[](Actor&) {},
                  [](Actor& next) {
                    next.join();
                    next.pin(K);
                  },
                  [](Actor& e) { e.maintain(); }},
                 [](Actors& a) {
                   prefer_entries(1);
                   a[0]->join();
                   a[2]->join();
                   a[2]->set_arena(1);
                   a[2]->put(K);
                   a[0]->pin(K);
                 },
                 {1},
                 1});
  all.push_back({"a reader dies while somebody new joins",
                 {1, 2, 0},
                 {[](Actor&) {}, [](Actor& next) { next.join(); }, [](Actor& e) { e.settle(); }},
                 [](Actors& a) {
                   prefer_entries(1);
                   a[0]->join();
                   a[2]->join();
                   a[2]->set_arena(1);
                   a[2]->put(K);
                   a[0]->pin(K);
                 },
                 {1},
                 1});
  all.push_back({"a slot with a dead arena is taken over under a reader",
                 {0, 1, 2},
                 {[](Actor&) {},
                  [](Actor& next) {
                    next.forget_arena(0);
                    next.join();
                    next.set_arena(1);
                  },
                  [](Actor& pd) {
                    pd.tick();  // so that the next operation may begin at any time
                    pd.pin(K);
                    pd.unpin();
                    pd.unpin();
                  }},
                 [](Actors& a) {
                   prefer_entries(1);
                   a[0]->join();
                   a[0]->set_arena(1);
                   a[2]->join();
                   a[0]->put(K);
                   a[2]->pin(K);
                 },
                 {0},
                 1});
  all.push_back({"the last view of a leaver dies while somebody takes the slot",
                 {1, 2, 0},
                 {[](Actor& pd) { pd.unpin(); }, [](Actor& next) { next.join(); }, [](Actor&) {}},
                 [](Actors& a) {
                   prefer_entries(1);
                   a[0]->join();
                   a[2]->join();
                   a[2]->set_arena(1);
                   a[2]->put(K);
                   a[0]->pin(K);
                   a[0]->leave();
                 },
                 {1, 2},
                 1});
  all.push_back({"a producer leaves against a reader",
                 {0, 1},
                 {[](Actor& e) { e.leave(); },
                  [](Actor& pd) {
                    pd.pin(K);
                    pd.unpin();
                  }},
                 [](Actors& a) {
                   gather(a, 1, 2, 2);
                   a[0]->put(K);
                   a[0]->reserve(L);
                 },
                 {0, 1},
                 1});
  all.push_back({"a new epoch hides what is older",
                 {0, 1},
                 {[](Actor& e) {
                    e.new_epoch();
                    e.put(K);
                  },
                  [](Actor& pd) {
                    pd.pin(K);
                    pd.unpin();
                    pd.maintain();
                  }},
                 [](Actors& a) {
                   gather(a, 1, 2, 2);
                   a[0]->put(K);
                 },
                 {1},
                 1});

  // Two threads of one process.
  const auto read_by_threads = [](Actors& a) {
    gather(a, 1, 1, 1);
    a[0]->put(K);
  };
  all.push_back({"two threads of one process read",
                 {1, 1, 0},
                 {[](Actor& t) {
                    t.pin(K);
                    t.unpin();
                  },
                  [](Actor& t) {
                    t.pin(K);
                    t.unpin();
                  },
                  [](Actor& e) { e.settle(); }},
                 [](Actors& a) {
                   prefer_entries(1);
                   a[2]->join();
                   a[2]->set_arena(1);
                   a[0]->join();
                   a[2]->put(K);
                 },
                 {1},
                 1});
  all.push_back({"two threads of one process put",
                 {0, 0},
                 {[](Actor& t) { t.put(K); }, [](Actor& t) { t.put(L); }},
                 [](Actors& a) { gather(a, 1, 2, 2); },
                 {0},
                 1});
  all.push_back({"two threads of one process put the same key",
                 {0, 0},
                 {[](Actor& t) { t.put(K); }, [](Actor& t) { t.put(K); }},
                 [](Actors& a) { gather(a, 1, 2, 2); },
                 {0},
                 1});
  all.push_back({"one thread leaves while another holds a view",
                 {0, 0},
                 {[](Actor& t) { t.leave(); },
                  [](Actor& t) {
                    t.pin(K);
                    t.unpin();
                  }},
                 read_by_threads,
                 {0},
                 1});
  all.push_back({"one thread leaves twice and joins again while another drops the last view",
                 {0, 0},
                 {[](Actor& t) {
                    t.leave();
                    t.leave();
                    t.join_if_out();
                  },
                  [](Actor& t) { t.unpin(); }},
                 [](Actors& a) {
                   gather(a, 1, 1, 1);
                   a[0]->put(K);
                   a[1]->pin(K);
                 },
                 {},
                 0});
  all.push_back({"one thread publishes while another leaves",
                 {0, 0},
                 {[](Actor& t) { t.put(K); }, [](Actor& t) { t.leave(); }},
                 [](Actors& a) { gather(a, 1, 1, 1); },
                 {},
                 0});
  return all;
}

}  // namespace interleave
