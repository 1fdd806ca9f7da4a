// A segment with life in it, whose words somebody overwrites.
#pragma once

#include "aim.h"
#include "exercise.h"

namespace fuzz {

class Victim {
 public:
  Victim();
  const TestSegment& segment() const { return segment_; }
  const Geometry& geometry() const { return geometry_; }
  u64 value(u64 word) const;
  // Atomically: others may be looking.
  void damage(const Damage& damage);
  void damage(Random& random);

  // Both participants do everything once.
  void use(u64 choice);
  // As a process that comes now: the header is checked, and what is refused is refused with a reason.
  void attach();

  static constexpr u64 kItems = 8;
  static constexpr u64 kArena = 8 * kAlignment;

 private:
  TestSegment segment_{kItems};
  Geometry geometry_ = Geometry::of(kItems);
  Memory mapping_{segment_.fd(), geometry_.total_bytes, false};
  std::shared_ptr<Participant> producer_;
  std::shared_ptr<Participant> reader_;
  std::vector<std::byte> arena_ = std::vector<std::byte>(kArena);
};

}  // namespace fuzz
