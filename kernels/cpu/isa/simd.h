// The vector vocabulary of the build being compiled (LLMRUN_BUILD: generic, avx2, avxvnni, avx512, amx, neon, and those
// with _emulated), and exp on it.
#pragma once
#include "../core/kernels.h"

#if defined(LLMRUN_EMULATED)
#include "../emulate/avx512.h"
#endif

#if defined(LLMRUN_BUILD_AVX512) || defined(LLMRUN_BUILD_AMX)
#include "simd_avx512.h"
#elif defined(LLMRUN_BUILD_AVX2) || defined(LLMRUN_BUILD_AVXVNNI)
#include "simd_avx2.h"
#elif defined(LLMRUN_BUILD_NEON)
#include "simd_neon.h"
#else
#include "simd_generic.h"
#endif

namespace llmrun::LLMRUN_BUILD {

constexpr int PARTS = GROUP / LANES;

#if defined(LLMRUN_WORDS)
constexpr bool WORDS = true;
#else
constexpr bool WORDS = false;  // 16-bit activations are two byte planes
#endif

// e^x for x in [-87, 88]; beyond that the nearest of the two ends. Relative error below 3e-7. NaN stays NaN: the vector
// maximum and minimum return their second operand then.
OP F exp(F x) {
  x = minf(set1(88.0f), maxf(set1(-87.0f), x));
  const F n = round_nearest(mul(x, set1(1.44269504f)));
  F r = fma(n, set1(-0.693145752f), x);  // ln 2 in two parts, the first with few bits
  r = fma(n, set1(-1.42860677e-6f), r);
  F y = set1(1.0f / 5040);
  y = fma(y, r, set1(1.0f / 720));
  y = fma(y, r, set1(1.0f / 120));
  y = fma(y, r, set1(1.0f / 24));
  y = fma(y, r, set1(1.0f / 6));
  y = fma(y, r, set1(0.5f));
  y = fma(y, r, set1(1.0f));
  y = fma(y, r, set1(1.0f));
  return scale2(y, n);
}

// 2^x for x <= 0; below -126 the power of that. Relative error below 2e-7, and 1 for 0. NaN stays NaN.
OP F exp2_down(F x) {
  x = maxf(set1(-126.0f), x);
  const F n = round_nearest(x);
  const F r = sub(x, n);
  F y = set1(0.000153458124f);  // least greatest relative error over [-0.5, 0.5]
  y = fma(y, r, set1(0.00133999309f));
  y = fma(y, r, set1(0.00961848907f));
  y = fma(y, r, set1(0.0555032864f));
  y = fma(y, r, set1(0.240226462f));
  y = fma(y, r, set1(0.693147182f));
  y = fma(y, r, set1(1.0f));
  return scale2(y, n);
}

OP float first(F v) {
  float lanes[LANES];
  store(lanes, v);
  return lanes[0];
}

// The scalar e^x of the same arithmetic.
OP float exp1(float x) { return first(exp(set1(x))); }

}  // namespace llmrun::LLMRUN_BUILD
