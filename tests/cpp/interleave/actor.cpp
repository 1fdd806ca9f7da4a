#include "actor.h"

#include <bit>

namespace interleave {
namespace {

// What a process keeps for itself is private, and part of the state all the same. An explicit
// instantiation may name private members, which is the one way to read them without changing the core.
template <class Tag, auto Member>
struct Expose {
  friend constexpr auto member(Tag) { return Member; }
};
struct LocalTag {
  friend constexpr auto member(LocalTag);
};
struct ClosedTag {
  friend constexpr auto member(ClosedTag);
};
struct LedgerTag {
  friend constexpr auto member(LedgerTag);
};
template struct Expose<LedgerTag, &Core::ledger_>;
template struct Expose<LocalTag, &Holds<ModelPolicy>::local_>;
template struct Expose<ClosedTag, &Holds<ModelPolicy>::closed_>;

}  // namespace

u64 Process::hash() {
  u64 sum = mix(static_cast<u64>(core_.slot() + 1), core_.incarnation());
  const Holds<ModelPolicy>& holds = core_.holds();
  sum = mix(sum, holds.*member(ClosedTag{}));
  const auto& local = holds.*member(LocalTag{});
  for (u64 i = 0; i < local.size(); ++i) {
    if (local[i].count != 0) sum += mix(mix(i, local[i].count), local[i].generation);
  }
  const Ledger& ledger = core_.*member(LedgerTag{});
  sum = mix(mix(sum, ledger.arena.pack()), mix(ledger.live, ledger.sequence));
  for (const Extent& extent : ledger.used) sum = mix(mix(sum, extent.begin), mix(extent.end, extent.entry));
  return sum;
}

u64 Actor::hash() const {
  u64 sum = mix(mix(operations, history), static_cast<u64>(fiber.finished()));
  if (token) sum = mix(mix(sum, token_request), mix(token->entry, token->generation));
  for (const View& v : views) sum = mix(sum, mix(v.entry, v.generation));
  sum = mix(sum, mix(offset_, mix(request_, deadline_)));
  for (const ArenaRef& arena : arenas_at_begin_) sum = mix(sum, arena.pack());
  return mix(sum, intent.hash());
}

void Actor::begin(const char* name, u64 key) {
  explorer().act_for(this);
  intent = {};
  intent.name = name;
  intent.key = key;
  history = 0;
  order = ~u64{0};
  arenas_at_begin_.clear();
  ++operations;
}

void Actor::join() {
  begin("join");
  process_.core().join({1, 1, {}}, kPatience);
}

void Actor::join_if_out() {
  if (process_.core().slot() < 0) join();
}

void Actor::set_arena(unsigned units) {
  begin("set_arena");
  ArenaRecord record;
  record.nbytes = units * kUnit;
  process_.core().set_arena(record, kPatience);
}

void Actor::leave() {
  begin("leave");
  process_.core().leave(kPatience);
}

void Actor::forget_arena(unsigned slot) {
  begin("forget_arena");
  const u64 incarnation = explorer().load(explorer().world().view().arenas[slot].incarnation);
  process_.core().forget_arena({slot, incarnation}, kPatience);
}

// Whether somebody who was dead before this operation began is writing the key.
bool Actor::dead_writer_of(u64 key) const {
  const SegmentView view = explorer().world().view();
  for (u64 i = 0; i < kGeometry.entry_count; ++i) {
    const Word w = Word::unpack(view.entries[i].word);
    if (w.state == State::kWriting && view.entries[i].digest[0] == key &&
        !explorer().world().alive(static_cast<unsigned>(w.writer()))) {
      return true;
    }
  }
  return false;
}

bool Actor::took(const Placement& placement) {
  explorer().truth().expect(!(intent.writer_was_dead && placement.outcome == Outcome::kWritingElsewhere),
                            "told to wait for a writer that is dead");
  if (placement.token && placement.outcome != Outcome::kWritingElsewhere) {
    token = placement.token;
    token_request = request_;
    explorer().set(kMailPlace + number_, 1);
  }
  return placement.outcome == Outcome::kReserved;
}

bool Actor::reserve(u64 key, u64 n, bool deallocate, u64 ttl) {
  begin("reserve", key);
  request_ = operations * 8 + number_ + 1;
  key_ = key;
  intent.announces = n;
  intent.request = request_;
  intent.ttl = ttl;
  intent.deadline = explorer().world().now() + ttl;
  intent.writer_was_dead = dead_writer_of(key);
  Request request;
  request.digest = digest_of(key);
  request.nbytes = kUnit;
  request.announced = n;
  request.ttl_ns = ttl;
  request.deallocate = deallocate;
  try {
    const Placement placement = process_.core().reserve(request, kPatience);
    offset_ = placement.offset;
    deadline_ = intent.deadline;
    return took(placement);
  } catch (const SegmentError&) {
    return false;  // another thread is leaving
  }
}

void Actor::write() {
  begin("write", key_);
  const unsigned place = World::place_of_bytes(process_.core().incarnation(), offset_);
  explorer().set(place, ~u64{0});  // half of it
  explorer().set(place, key_);
}

void Actor::publish(u64 at_publish) {
  begin("publish", key_);
  intent.announces = at_publish;
  intent.request = request_;
  intent.deadline = deadline_;
  process_.core().directory().publish(*token, at_publish);
}

void Actor::abort() {
  begin("abort", key_);
  process_.core().directory().abort(*token);
}

void Actor::put(u64 key, u64 n, bool deallocate, u64 at_publish, u64 ttl) {
  if (!reserve(key, n, deallocate, ttl)) return;
  write();
  publish(at_publish);
}

void Actor::announce(u64 key, u64 n, u64 ttl) {
  begin("announce", key);
  request_ = operations * 8 + number_ + 1;
  intent.announces = n;
  intent.request = request_;
  intent.ttl = ttl;
  intent.deadline = explorer().world().now() + ttl;
  intent.writer_was_dead = dead_writer_of(key);
  took(process_.core().announce(digest_of(key), n, ttl, kPatience));
}

void Actor::view(const std::optional<Found>& found, u64 key) {
  if (!found) return;
  const ArenaRef arena = found->fields.arena;
  const View v{number_, process_.number(),   found->token.entry, found->token.generation, key,
               arena,   found->fields.offset};
  // A reader maps the arena that has the slot now; another one would show it other bytes.
  bool was_there = explorer().world().view().arenas[arena.slot].incarnation == arena.incarnation;
  for (const ArenaRef& known : arenas_at_begin_) was_there = was_there || known == arena;
  explorer().truth().expect(was_there, "a view in an arena that was gone before");
  views.push_back(v);
  explorer().truth().begin_view(v);
}

bool Actor::pin(u64 key) {
  begin("pin", key);
  const SegmentView shared = explorer().world().view();
  for (unsigned slot = 0; slot < 4; ++slot) {
    if (shared.arenas[slot].incarnation != 0) {
      arenas_at_begin_.push_back({slot, shared.arenas[slot].incarnation});
    }
  }
  const auto found = process_.core().holds().pin(digest_of(key));
  view(found, key);
  return found.has_value();
}

bool Actor::pin_token(Token wanted, u64 key) {
  begin("pin", key);
  const auto found = process_.core().holds().pin(wanted);
  if (found) arenas_at_begin_.push_back(found->fields.arena);
  view(found, key);
  return found.has_value();
}

void Actor::unpin() {
  if (views.empty()) return;
  begin("unpin");
  const View v = views.back();
  views.pop_back();
  explorer().truth().end_view(v);
  process_.core().unpin({v.entry, v.generation});
}

void Actor::settle(u64 n) {
  if (!token) return;
  begin("settle", key_);
  intent.settles = token_request;
  process_.core().directory().settle(*token, n);
}

void Actor::settle_of(unsigned giver, u64 n) {
  begin("settle");
  explorer().wait_for_mail(giver);
  const Actor* other = explorer().actor(giver);
  if (other == nullptr || explorer().world().get(kMailPlace + giver) == 0) return;
  const Token given = *other->token;
  intent.settles = other->token_request;
  process_.core().directory().settle(given, n);
}

void Actor::settle_key(u64 key, u64 request) {
  begin("settle", key);
  intent.settles = request;
  const auto& directory = process_.core().directory();
  if (const auto found = directory.find(digest_of(key))) directory.settle(found->token, 1);
}

void Actor::find(u64 key) {
  begin("find", key);
  const auto found = process_.core().directory().find(digest_of(key));
  if (found) explorer().truth().check_found(found->token.entry, found->token.generation, key);
}

void Actor::maintain() {
  begin("maintain");
  process_.core().maintain(kPatience);
}

void Actor::tick() {
  begin("tick");
  explorer().set(kClockPlace, explorer().get(kClockPlace) + 1);
}

void Actor::new_epoch() {
  begin("new_epoch");
  auto& directory = process_.core().directory();
  directory.add(directory.view().header->epoch, 1);
}

}  // namespace interleave
