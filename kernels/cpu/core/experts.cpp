#include "experts.h"

#include <string.h>

#include "kernels.h"

namespace llmrun {

void expert_plan(const Job& job) {
  const int64_t slots = job.op->n[0] * job.op->n[1], experts = job.op->n[2];
  const int32_t* ids = static_cast<const int32_t*>(job.op->p[0]);
  int32_t* order = static_cast<int32_t*>(job.op->p[1]);
  int32_t* place = static_cast<int32_t*>(job.op->p[2]);
  int32_t* plan = static_cast<int32_t*>(job.op->p[3]);
  int32_t* next = reinterpret_cast<int32_t*>(job.scratch);  // of each expert: rows, then the slot to fill
  memset(next, 0, static_cast<size_t>(experts) * sizeof(int32_t));
  plan[0] = 0;
  for (int64_t s = 0; s < slots; ++s) {
    if (ids[s] < 0 || ids[s] >= experts) return report(job, LLMRUN_BAD_EXPERT);
    ++next[ids[s]];
  }
  int32_t used = 0, begin = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const int32_t rows = next[e];
    next[e] = begin;
    if (!rows) continue;
    plan[1 + 3 * used] = static_cast<int32_t>(e);
    plan[2 + 3 * used] = begin;
    plan[3 + 3 * used] = begin += rows;
    ++used;
  }
  plan[0] = used;
  for (int64_t s = 0; s < slots; ++s) {
    const int32_t slot = next[ids[s]]++;
    order[slot] = static_cast<int32_t>(s);
    place[s] = slot;
  }
}

}  // namespace llmrun
