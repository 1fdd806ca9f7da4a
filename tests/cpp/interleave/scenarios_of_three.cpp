#include "scenarios.h"

namespace interleave {

std::vector<Scenario> scenarios_of_three() {
  std::vector<Scenario> all;

  all.push_back({"put, read and a second put of the same key",
                 {0, 1, 2},
                 {[](Actor& e) { e.put(K); }, [](Actor& f) { f.put(K); },
                  [](Actor& pd) {
                    pd.pin(K);
                    pd.settle_of(0);
                    pd.unpin();
                  }},
                 [](Actors& a) { gather(a, 2, 1, 2); },
                 {0, 1, 2},
                 1});
  all.push_back({"the last reader, an announcement on a hit and the next key",
                 {0, 1, 2},
                 {[](Actor& e) { e.put(L); }, [](Actor& f) { f.announce(K); },
                  [](Actor& pd) {
                    pd.pin(K);
                    pd.settle();
                    pd.unpin();
                  }},
                 [](Actors& a) {
                   gather(a, 2, 1, 1);
                   a[0]->put(K);
                   a[2]->token = a[0]->token;
                   a[2]->token_request = a[0]->token_request;
                 },
                 {1, 2},
                 1});
  all.push_back(
      {"a key is announced while its entry gets another",
       {0, 1, 2},
       {[](Actor& e) { e.put(K); }, [](Actor& f) { f.announce(L); }, [](Actor& pd) { pd.settle(); }},
       [](Actors& a) {
         gather(a, 2, 1, 1);
         a[0]->put(L);
         a[2]->token = a[0]->token;
         a[2]->token_request = a[0]->token_request;
       },
       {0, 1},
       1});
  all.push_back({"expiry under a reader, a new announcement and the reader's late settle",
                 {0, 1, 2},
                 {[](Actor& e) { e.announce(K); },
                  [](Actor& pd) {
                    pd.pin(K);
                    pd.settle();
                    pd.unpin();
                  },
                  [](Actor& timer) {
                    timer.tick();
                    timer.maintain();
                  }},
                 [](Actors& a) {
                   gather(a, 1, 1, 1);
                   a[0]->put(K);
                   a[1]->token = a[0]->token;
                   a[1]->token_request = a[0]->token_request;
                 },
                 {0, 1},
                 1});
  all.push_back({"announce, expiry and the settle of what was announced before",
                 {0, 1, 2},
                 {[](Actor& e) { e.announce(K, 2); }, [](Actor& pd) { pd.settle(); },
                  [](Actor& timer) {
                    timer.maintain();
                    timer.tick();
                    timer.maintain();
                  }},
                 [](Actors& a) {
                   gather(a, 1, 1, 1);
                   a[0]->put(K);
                   a[1]->token = a[0]->token;
                   a[1]->token_request = a[0]->token_request;
                 },
                 {0},
                 1});
  all.push_back({"a reader dies, its slot is reclaimed and taken by somebody new who reads",
                 {1, 2, 0},
                 {[](Actor& pd) {
                    pd.pin(K);
                    pd.unpin();
                  },
                  [](Actor& next) {
                    next.join();
                    next.pin(K);
                    next.unpin();
                  },
                  [](Actor& e) {
                    e.maintain();
                    e.settle();
                  }},
                 [](Actors& a) {
                   prefer_entries(1);
                   // The reader has the first slot, so that whoever comes next gets it.
                   a[0]->join();
                   a[2]->join();
                   a[2]->set_arena(1);
                   a[2]->put(K);
                 },
                 {1},
                 1,
                 false,
                 true});
  all.push_back({"the producer dies, its arena is forgotten and its slot has a new one",
                 {0, 1, 2},
                 {[](Actor& e) { e.put(L, 1, true); },
                  [](Actor& next) {
                    next.forget_arena(0);
                    next.join();
                    next.set_arena(2);
                    next.put(K);
                  },
                  [](Actor& pd) {
                    pd.pin(K);
                    pd.unpin();
                    pd.pin(L);
                    pd.unpin();
                  }},
                 [](Actors& a) {
                   prefer_entries(2);
                   a[0]->join();
                   a[0]->set_arena(2);
                   a[2]->join();
                   a[0]->put(K);
                 },
                 {0},
                 1,
                 false,
                 true});
  all.push_back({"a producer leaves, somebody new has its slot, and a view of the old arena lives on",
                 {0, 1, 2},
                 {[](Actor& e) { e.leave(); },
                  [](Actor& next) {
                    next.join();
                    next.set_arena(1);
                    next.put(L);
                  },
                  [](Actor& pd) { pd.unpin(); }},
                 [](Actors& a) {
                   prefer_entries(2);
                   a[0]->join();
                   a[0]->set_arena(1);
                   a[2]->join();
                   a[0]->put(K);
                   a[2]->pin(K);
                 },
                 {0, 1},
                 1});
  all.push_back({"eviction and refill against two readers",
                 {0, 1, 2},
                 {[](Actor& e) { e.put(L, 0, false); },
                  [](Actor& pd) {
                    pd.pin(K);
                    pd.unpin();
                  },
                  [](Actor& pd) {
                    pd.pin(K);
                    pd.unpin();
                  }},
                 [](Actors& a) {
                   gather(a, 1, 1, 1);
                   a[0]->put(K, 0, false);
                 },
                 {},
                 0,
                 false,
                 true});
  all.push_back({"two readers of one announcement each, one dies, a timer cleans",
                 {1, 2, 0},
                 {[](Actor& pd) {
                    pd.pin(K);
                    pd.settle();
                    pd.unpin();
                  },
                  [](Actor& pd) {
                    pd.pin(K);
                    pd.settle();
                    pd.unpin();
                  },
                  [](Actor& e) { e.maintain(); }},
                 [](Actors& a) {
                   prefer_entries(1);
                   a[2]->join();
                   a[2]->set_arena(1);
                   a[0]->join();
                   a[1]->join();
                   a[2]->put(K);
                   a[0]->token = a[2]->token;
                   a[0]->token_request = a[2]->token_request;
                   a[2]->announce(K);
                   a[1]->token = a[2]->token;
                   a[1]->token_request = a[2]->token_request;
                 },
                 {1, 2},
                 1,
                 false,
                 true});
  all.push_back({"a writer aborts or dies, another announces, a third reads",
                 {0, 1, 2},
                 {[](Actor& e) {
                    if (e.reserve(K)) e.abort();
                    e.put(L);
                  },
                  [](Actor& f) {
                    f.announce(K);
                    f.put(K);
                  },
                  [](Actor& pd) {
                    pd.pin(K);
                    pd.unpin();
                  }},
                 [](Actors& a) { gather(a, 2, 1, 1); },
                 {0},
                 1,
                 false,
                 true});
  all.push_back({"a timer thread, a thread that puts, and another producer",
                 {0, 0, 1},
                 {[](Actor& t) { t.put(K); }, [](Actor& t) { t.maintain(); }, [](Actor& f) { f.put(K); }},
                 [](Actors& a) {
                   prefer_entries(2);
                   a[0]->join();
                   a[0]->set_arena(1);
                   a[2]->join();
                   a[2]->set_arena(1);
                 },
                 {0, 1},
                 1});
  all.push_back({"two threads of one process read, the producer evicts",
                 {1, 1, 0},
                 {[](Actor& t) {
                    t.pin(K);
                    t.unpin();
                  },
                  [](Actor& t) {
                    t.pin(K);
                    t.unpin();
                  },
                  [](Actor& e) { e.put(L, 0, false); }},
                 [](Actors& a) {
                   prefer_entries(1);
                   a[2]->join();
                   a[2]->set_arena(1);
                   a[0]->join();
                   a[2]->put(K, 0, false);
                 },
                 {1},
                 1,
                 false,
                 true});
  all.push_back({"a reader leaves with two threads while somebody new takes its slot",
                 {1, 1, 2},
                 {[](Actor& t) { t.leave(); },
                  [](Actor& t) {
                    t.settle();
                    t.unpin();
                  },
                  [](Actor& next) {
                    next.join();
                    next.pin(K);
                    next.unpin();
                  }},
                 [](Actors& a) {
                   prefer_entries(1);
                   a[0]->join();
                   a[0]->set_arena(1);
                   a[0]->put(K);
                   a[1]->token = a[0]->token;
                   a[1]->token_request = a[0]->token_request;
                   a[1]->pin(K);
                 },
                 {1, 2},
                 1,
                 false,
                 true});
  return all;
}

}  // namespace interleave
