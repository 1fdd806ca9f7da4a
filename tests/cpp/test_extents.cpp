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

TEST(sorting_is_by_where_they_begin) {
  std::vector<Extent> used = {{512, 768, 0}, {0, 256, 1}};
  sort_extents(used);
  CHECK(used[0].entry == 1);
}
