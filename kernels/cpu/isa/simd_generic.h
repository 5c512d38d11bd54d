// Plain C++ with no instruction set of its own: 8 lanes as arrays, for machines without a better build and as the plain
// statement of what the vector builds compute.
#pragma once
#include <math.h>

#include "../core/half.h"

#define OP static inline __attribute__((always_inline))

namespace llmrun::LLMRUN_BUILD {

constexpr int LANES = 8;
constexpr int TILE = 4;
constexpr int FINE_TILE = 2;
constexpr int FLOAT_TILE = 4;
constexpr int FLOAT_GROUPS = 2;
constexpr int QUERY_TILE = 2;
constexpr int VALUE_TILE = 2;
constexpr int PANEL_TILE = 2;     // query vectors x PANEL_VECTORS registers of widened values
constexpr int PANEL_VECTORS = 2;

struct F {
  float v[LANES];
};
struct I {
  int32_t v[LANES];
};

template <class Map>
OP F each(Map map) {
  F out;
  for (int i = 0; i < LANES; ++i) out.v[i] = map(i);
  return out;
}

OP F zero() { return F{}; }
OP F set1(float v) {
  return each([&](int) { return v; });
}
OP F load(const float* p) {
  return each([&](int i) { return p[i]; });
}
OP void store(float* p, F v) {
  for (int i = 0; i < LANES; ++i) p[i] = v.v[i];
}
OP F load_n(const float* p, int n) {
  return each([&](int i) { return i < n ? p[i] : 0.0f; });
}
OP void store_n(float* p, F v, int n) {
  for (int i = 0; i < LANES && i < n; ++i) p[i] = v.v[i];
}
OP F add(F a, F b) {
  return each([&](int i) { return a.v[i] + b.v[i]; });
}
OP F sub(F a, F b) {
  return each([&](int i) { return a.v[i] - b.v[i]; });
}
OP F mul(F a, F b) {
  return each([&](int i) { return a.v[i] * b.v[i]; });
}
OP F div(F a, F b) {
  return each([&](int i) { return a.v[i] / b.v[i]; });
}
OP F fma(F a, F b, F c) {
  return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
OP F maxf(F a, F b) {
  return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
OP F minf(F a, F b) {
  return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
OP F round_nearest(F v) {
  return each([&](int i) { return nearbyintf(v.v[i]); });
}
OP F scale2(F v, F n) {
  return each([&](int i) { return v.v[i] * bits_to_float(static_cast<uint32_t>(static_cast<int32_t>(n.v[i]) + 127) << 23); });
}
OP F keep_below(F v, int n) {
  return each([&](int i) { return i < n ? v.v[i] : 0.0f; });
}
OP F fill_from(F v, int n, float fill) {
  return each([&](int i) { return i < n ? v.v[i] : fill; });
}
OP float hsum(F v) {
  float s = 0.0f;
  for (int i = 0; i < LANES; ++i) s += v.v[i];
  return s;
}
OP float hmax(F v) {
  float s = v.v[0];
  for (int i = 1; i < LANES; ++i) s = v.v[i] > s ? v.v[i] : s;
  return s;
}
OP F to_float(I v) {
  return each([&](int i) { return static_cast<float>(v.v[i]); });
}
OP F load_half(const uint16_t* p) {
  return each([&](int i) { return half_to_float(p[i]); });
}
OP F set1_half(uint16_t v) { return set1(half_to_float(v)); }
OP F load_half_n(const uint16_t* p, int n) {
  return each([&](int i) { return i < n ? half_to_float(p[i]) : 0.0f; });
}
OP F load_bfloat(const uint16_t* p) {
  return each([&](int i) { return bfloat_to_float(p[i]); });
}
OP F load_bfloat_n(const uint16_t* p, int n) {
  return each([&](int i) { return i < n ? bfloat_to_float(p[i]) : 0.0f; });
}
OP void store_half(uint16_t* p, F v) {
  for (int i = 0; i < LANES; ++i) p[i] = float_to_half(v.v[i]);
}
OP F load_u8(const uint8_t* p) {
  return each([&](int i) { return static_cast<float>(p[i]); });
}
OP F load_i8(const uint8_t* p) {
  return each([&](int i) { return static_cast<float>(static_cast<int8_t>(p[i])); });
}
OP F load_low4(const uint8_t* p) {
  return each([&](int i) { return static_cast<float>(p[i] & 15); });
}
OP F load_high4(const uint8_t* p) {
  return each([&](int i) { return static_cast<float>(p[i] >> 4); });
}
// 2^(byte - 128), subnormal for 0 and 1.
OP F load_power(const uint8_t* p) {
  return each([&](int i) { return power_to_float(p[i]); });
}
// Half of a float of 4 exponent (bias 7) and 3 mantissa bits: its bits are those of an f16 that is 2^7 too small.
OP F load_byte_float(const uint8_t* p) {
  return each([&](int i) { return byte_float_to_float(p[i]); });
}
// 2^-8 of 8-bit floats with a sign (half.h).
OP F load_signed_byte_float(const uint8_t* p) {
  return each([&](int i) { return signed_byte_float(p[i]); });
}
OP void transpose(F r[LANES]) {
  for (int i = 0; i < LANES; ++i)
    for (int j = i + 1; j < LANES; ++j) {
      const float t = r[i].v[j];
      r[i].v[j] = r[j].v[i];
      r[j].v[i] = t;
    }
}

// Quant k of row `lane` of this part, its table applied.
template <class Q>
OP int quant(const uint8_t* q, int lane, int k) {
  const int byte = lane * 4 + k % 4, quad = k / 4;
  if constexpr (Q::bits == 8) return q[64 * quad + byte];
  int value = 0;
  if constexpr (Q::bits >= 4)
    value = (q[64 * (quad / 2) + byte] >> (quad % 2 * 4)) & 15;
  else if constexpr (Q::bits >= 2)
    value = (q[64 * (quad / 4) + byte] >> (quad % 4 * 2)) & 3;
  if constexpr (Q::bits == 5) value |= ((q[256 + byte] >> quad) & 1) << 4;
  if constexpr (Q::bits == 6) value |= ((q[256 + 64 * (quad / 4) + byte] >> (quad % 4 * 2)) & 3) << 4;
  if constexpr (Q::bits == 3) value |= ((q[128 + byte] >> quad) & 1) << 2;
  if constexpr (Q::bits == 1) value = (q[byte] >> quad) & 1;
  if constexpr (Q::lookup) return Q::table[value];
  return value;
}

template <class Q, int T, int P>
OP void dot_range(const uint8_t* q, const XBlock* x, int from, int to, I acc[P][T]) {
  for (int p = 0; p < P; ++p)
    for (int lane = 0; lane < LANES; ++lane) {
      int32_t sum[T] = {0};
      for (int k = from; k < to; ++k) {
        const int value = quant<Q>(q + p * LANES * 4, lane, k) - Q::offset;
        for (int m = 0; m < T; ++m) sum[m] += value * x[m].q[k];
      }
      for (int m = 0; m < T; ++m) acc[p][m].v[lane] = sum[m];
    }
}

template <class Q, int T, int P>
OP void dot(const uint8_t* q, const XBlock* x, I acc[P][T]) {
  dot_range<Q, T, P>(q, x, 0, 32, acc);
}

template <class Q, int T, int P>
OP void dot_halves(const uint8_t* q, const XBlock* x, I low[P][T], I up[P][T]) {
  dot_range<Q, T, P>(q, x, 0, 16, low);
  dot_range<Q, T, P>(q, x, 16, 32, up);
}

// 255 high + low, the sums of the two planes of 16-bit activations.
OP I join_planes(I high, I low) {
  I out;
  for (int i = 0; i < LANES; ++i) out.v[i] = high.v[i] * PLANE + low.v[i];
  return out;
}
OP void store_i8(int8_t* p, F v) {
  for (int i = 0; i < LANES; ++i) p[i] = v.v[i] >= -128.0f && v.v[i] <= 127.0f ? static_cast<int8_t>(v.v[i]) : 0;  // 0: NaN
}

OP void quantize_block(const float* x, XBlock* out) {
  float most = 0.0f;
  for (int i = 0; i < BLOCK; ++i) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
  const float inverse = most >= LEAST_ACTIVATION ? 127.0f / most : 0.0f;
  int32_t sums[2] = {0, 0};
  for (int i = 0; i < BLOCK; ++i) {
    const float scaled = nearbyintf(x[i] * inverse);
    const int q = scaled >= -127.0f && scaled <= 127.0f ? static_cast<int>(scaled) : 0;  // 0: NaN
    out->q[i] = static_cast<int8_t>(q);
    sums[i / 16] += q;
  }
  out->d = most * (1.0f / 127.0f);
  set_sums(out, sums[0], sums[1]);
}

}  // namespace llmrun::LLMRUN_BUILD
