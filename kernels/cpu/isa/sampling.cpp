// Sampling helpers of a build: argmax and log-softmax over rows of logits.
#include <math.h>

#include "simd.h"

namespace llmrun::LLMRUN_BUILD {
namespace {

float row_maximum(const float* x, int64_t count) {
  const float lowest = -INFINITY;
  F most = set1(lowest);
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) most = maxf(load(x + i), most);
  if (i < count) {
    const int n = static_cast<int>(count - i);
    most = maxf(fill_from(load_n(x + i, n), n, lowest), most);
  }
  return hmax(most);
}

float row_exp_sum(const float* x, int64_t count, float most) {
  F sum = zero();
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) sum = add(sum, exp(sub(load(x + i), set1(most))));
  if (i < count) {
    const int n = static_cast<int>(count - i);
    sum = add(sum, keep_below(exp(sub(load_n(x + i, n), set1(most))), n));
  }
  return hsum(sum);
}

}  // namespace

// The lowest index of the maximum; 0 for a row of NaN. Where it is wanted, the softmax of that element too.
void argmax(const Job& job) {
  const int64_t count = job.op->n[1];
  float* share = static_cast<float*>(job.op->p[2]);
  for (int64_t r = job.begin; r < job.end; ++r) {
    const float* x = static_cast<const float*>(job.op->p[0]) + r * count;
    const float most = row_maximum(x, count);
    int64_t i = 0;
    while (i < count && x[i] != most) ++i;
    static_cast<int32_t*>(job.op->p[1])[r] = i < count ? static_cast<int32_t>(i) : 0;
    if (share) share[r] = 1.0f / row_exp_sum(x, count, most);
  }
}

void log_softmax(const Job& job) {
  const int64_t count = job.op->n[1];
  for (int64_t r = job.begin; r < job.end; ++r) {
    const float* x = static_cast<const float*>(job.op->p[0]) + r * count;
    float* out = static_cast<float*>(job.op->p[1]) + r * count;
    const float most = row_maximum(x, count);
    const float shift = most + logf(row_exp_sum(x, count, most));
    for (int64_t i = 0; i < count; ++i) out[i] = x[i] - shift;
  }
}

}  // namespace llmrun::LLMRUN_BUILD
