// The slots of a mixture-of-experts layer sorted by expert: made anew at each run, from the ids the router chose.
//
// Slot = one (row, choice) pair. The plan is an i32 array: how many experts have slots, then for each of them, in
// ascending order, its number and the first and one past the last of its sorted slots.
#pragma once
#include <stdint.h>

namespace llmrun {

constexpr int32_t RENORMALISE = 4;  // flag of expert_route

struct ExpertRows {
  int64_t expert, begin, end;
};

class ExpertPlan {
 public:
  explicit ExpertPlan(const int32_t* plan) : plan_(plan) {}

  int64_t count() const { return plan_[0]; }
  ExpertRows rows(int64_t i) const { return {plan_[1 + 3 * i], plan_[2 + 3 * i], plan_[3 + 3 * i]}; }

  // The entry that holds a slot.
  int64_t find(int64_t slot) const {
    int64_t low = 0, high = count();
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (rows(middle).begin <= slot ? low : high) = middle;
    }
    return low;
  }

 private:
  const int32_t* plan_;
};

struct Job;

// Counting sort: fills order (slot -> row * k + choice), place (its inverse) and the plan. One unit.
void expert_plan(const Job& job);

}  // namespace llmrun
