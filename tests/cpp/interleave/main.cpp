// interleave [--quick] [--list] [NAME...]: explores the scenarios whose name begins with one of these.
#include <chrono>
#include <cstdio>
#include <string_view>

#include "scenarios.h"

using namespace interleave;

namespace {

constexpr u64 kMostStates = 60'000'000;

bool wanted(const Scenario& scenario, const std::vector<std::string_view>& names, bool quick) {
  if (names.empty()) return !(quick && scenario.big);
  for (const std::string_view name : names) {
    if (scenario.name.starts_with(name)) return true;
  }
  return false;
}

}  // namespace

int main(int count, char** arguments) {
  bool quick = false;
  bool list = false;
  std::vector<std::string_view> names;
  for (int i = 1; i < count; ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "--quick") {
      quick = true;
    } else if (argument == "--list") {
      list = true;
    } else {
      names.push_back(argument);
    }
  }
  std::vector<Scenario> all = scenarios_of_two();
  for (Scenario& scenario : scenarios_of_three()) all.push_back(std::move(scenario));

  Figures sum;
  unsigned explored = 0;
  for (const Scenario& scenario : all) {
    if (list) std::printf("%s\n", scenario.name.c_str());
    if (list || !wanted(scenario, names, quick)) continue;
    const auto begun = std::chrono::steady_clock::now();
    const std::string wrong = explorer().explore(scenario, kMostStates);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    const Figures& figures = explorer().figures();
    std::printf("%s %9llu states %8llu executions %4zu meetings %5.1fs  %s\n",
                wrong.empty() ? "ok    " : "FAILED", static_cast<unsigned long long>(figures.states),
                static_cast<unsigned long long>(figures.executions), explorer().world().meetings(),
                took.count(), scenario.name.c_str());
    std::fflush(stdout);
    if (!wrong.empty()) {
      std::printf("%s", wrong.c_str());
      return 1;
    }
    sum.states += figures.states;
    sum.executions += figures.executions;
    ++explored;
  }
  if (list) return 0;
  std::printf("%u scenarios, %llu states, %llu executions explored\n", explored,
              static_cast<unsigned long long>(sum.states), static_cast<unsigned long long>(sum.executions));
  return explored > 0 ? 0 : 1;
}
