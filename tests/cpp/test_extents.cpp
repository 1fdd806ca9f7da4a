#include "extents.h"

#include "check.h"

using namespace ec_ipc;

TEST(an_empty_arena_begins_at_zero) {
  CHECK(first_fit({}, 1024, 1024) == 0u);
  CHECK(!first_fit({}, 1024, 1025));
}

TEST(the_lowest_gap_that_fits_is_taken) {
  const std::vector<Extent> used = {{0, 256, 0}, {512, 1024, 1}, {2048, 2304, 2}};
  CHECK(first_fit(used, 4096, 256) == 256u);
  CHECK(first_fit(used, 4096, 512) == 1024u);
  CHECK(first_fit(used, 4096, 1280) == 2304u);
  CHECK(!first_fit(used, 4096, 2048));
}

TEST(overlapping_extents_are_all_in_use) {
  const std::vector<Extent> used = {{0, 1024, 0}, {256, 512, 1}};
  CHECK(first_fit(used, 2048, 512) == 1024u);
}

TEST(many_extents_are_sorted_whether_spread_or_crowded) {
  for (const std::uint64_t spread : {4096u, 1u}) {
    std::vector<Extent> used;
    for (std::uint64_t i = 0; i < 1000; ++i) {
      const std::uint64_t begin = (i * 7919 % 1000) * spread;
      used.push_back({begin, begin + 1, i});
    }
    used.push_back({1ULL << 50, (1ULL << 50) + 1, 1000});
    sort_extents(used);
    bool sorted = used.size() == 1001;
    for (std::size_t i = 1; i < used.size(); ++i) sorted = sorted && used[i - 1].begin < used[i].begin;
    CHECK(sorted);
  }
}

TEST(sorting_is_by_where_they_begin) {
  std::vector<Extent> used = {{512, 768, 0}, {0, 256, 1}};
  sort_extents(used);
  CHECK(used[0].entry == 1);
}
