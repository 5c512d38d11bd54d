// NEON with the dot-product extension (Armv8.2): 8 lanes as two registers, a 16-row group is two parts. Quants below
// 8 bits are non-negative bytes, 8-bit ones are made signed again, so every product is s8 x s8.
#pragma once
#include <arm_neon.h>

#define OP static inline __attribute__((always_inline))

namespace llmrun::LLMRUN_BUILD {

constexpr int LANES = 8;
constexpr int TILE = 4;
constexpr int FINE_TILE = 2;
constexpr int FLOAT_TILE = 6;
constexpr int FLOAT_GROUPS = 4;
constexpr int QUERY_TILE = 4;
constexpr int VALUE_TILE = 3;
constexpr int PANEL_TILE = 6;     // query vectors x PANEL_VECTORS registers of widened values
constexpr int PANEL_VECTORS = 2;

struct F {
  float32x4_t a, b;
};
struct I {
  int32x4_t a, b;
};

OP F zero() { return {vdupq_n_f32(0), vdupq_n_f32(0)}; }
OP F set1(float v) { return {vdupq_n_f32(v), vdupq_n_f32(v)}; }
OP F load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
OP void store(float* p, F v) {
  vst1q_f32(p, v.a);
  vst1q_f32(p + 4, v.b);
}
OP F load_n(const float* p, int n) {
  float part[8] = {0};
  for (int i = 0; i < n && i < 8; ++i) part[i] = p[i];
  return load(part);
}
OP void store_n(float* p, F v, int n) {
  float part[8];
  store(part, v);
  for (int i = 0; i < n && i < 8; ++i) p[i] = part[i];
}
OP F add(F x, F y) { return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b)}; }
OP F sub(F x, F y) { return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b)}; }
OP F mul(F x, F y) { return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)}; }
OP F div(F x, F y) { return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b)}; }
OP F fma(F x, F y, F z) { return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)}; }
OP F maxf(F x, F y) { return {vmaxq_f32(x.a, y.a), vmaxq_f32(x.b, y.b)}; }
OP F minf(F x, F y) { return {vminq_f32(x.a, y.a), vminq_f32(x.b, y.b)}; }
OP F round_nearest(F v) { return {vrndnq_f32(v.a), vrndnq_f32(v.b)}; }
OP float32x4_t power2(float32x4_t n) {
  return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23));
}
OP F scale2(F v, F n) { return {vmulq_f32(v.a, power2(n.a)), vmulq_f32(v.b, power2(n.b))}; }
OP uint32x4_t below(int n, int first) {
  const int32_t lane[4] = {0, 1, 2, 3};
  return vcltq_s32(vld1q_s32(lane), vdupq_n_s32(n - first));
}
OP F fill_from(F v, int n, float fill) {
  return {vbslq_f32(below(n, 0), v.a, vdupq_n_f32(fill)), vbslq_f32(below(n, 4), v.b, vdupq_n_f32(fill))};
}
OP F keep_below(F v, int n) { return fill_from(v, n, 0.0f); }
OP float hsum(F v) { return vaddvq_f32(vaddq_f32(v.a, v.b)); }
OP float hmax(F v) { return vmaxvq_f32(vmaxq_f32(v.a, v.b)); }
OP F to_float(I v) { return {vcvtq_f32_s32(v.a), vcvtq_f32_s32(v.b)}; }

OP F widen_half(uint16x8_t v) {
  const float16x8_t h = vreinterpretq_f16_u16(v);
  return {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}
OP F widen_bfloat(uint16x8_t v) {
  return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(v), 16)),
          vreinterpretq_f32_u32(vshll_high_n_u16(v, 16))};
}
OP uint16x8_t load16_n(const uint16_t* p, int n) {
  uint16_t part[8] = {0};
  for (int i = 0; i < n && i < 8; ++i) part[i] = p[i];
  return vld1q_u16(part);
}
OP F load_half(const uint16_t* p) { return widen_half(vld1q_u16(p)); }
OP F set1_half(uint16_t v) { return widen_half(vdupq_n_u16(v)); }
OP F load_half_n(const uint16_t* p, int n) { return widen_half(load16_n(p, n)); }
OP F load_bfloat(const uint16_t* p) { return widen_bfloat(vld1q_u16(p)); }
OP F load_bfloat_n(const uint16_t* p, int n) { return widen_bfloat(load16_n(p, n)); }
OP void store_half(uint16_t* p, F v) {
  vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(v.a), v.b)));
}
OP F load_u8(const uint8_t* p) {
  const uint16x8_t w = vmovl_u8(vld1_u8(p));
  return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(w))), vcvtq_f32_u32(vmovl_high_u16(w))};
}
OP F load_i8(const uint8_t* p) {
  const int16x8_t w = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(w))), vcvtq_f32_s32(vmovl_high_s16(w))};
}

OP F float_of_bytes(uint8x8_t v) {
  const uint16x8_t w = vmovl_u8(v);
  return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(w))), vcvtq_f32_u32(vmovl_high_u16(w))};
}
OP F load_low4(const uint8_t* p) { return float_of_bytes(vand_u8(vld1_u8(p), vdup_n_u8(15))); }
OP F load_high4(const uint8_t* p) { return float_of_bytes(vshr_n_u8(vld1_u8(p), 4)); }
// 2^(byte - 128), subnormal for 0 and 1.
OP float32x4_t power_of(uint32x4_t e) {
  const uint32x4_t normal = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
  const uint32x4_t subnormal = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(e));
  return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), subnormal, normal));
}
OP F load_power(const uint8_t* p) {
  const uint16x8_t w = vmovl_u8(vld1_u8(p));
  return {power_of(vmovl_u16(vget_low_u16(w))), power_of(vmovl_high_u16(w))};
}
// Half of a float of 4 exponent (bias 7) and 3 mantissa bits: its bits are those of an f16 that is 2^7 too small.
OP F load_byte_float(const uint8_t* p) {
  return mul(widen_half(vshlq_n_u16(vmovl_u8(vld1_u8(p)), 7)), set1(128.0f));
}

// 2^-8 of 8-bit floats with a sign (half.h).
OP F load_signed_byte_float(const uint8_t* p) {
  const uint16x8_t wide = vmovl_u8(vld1_u8(p));
  const uint16x8_t sign = vshlq_n_u16(vandq_u16(wide, vdupq_n_u16(0x80)), 8);
  return widen_half(vorrq_u16(sign, vshlq_n_u16(vandq_u16(wide, vdupq_n_u16(0x7f)), 7)));
}

OP void transpose4(float32x4_t& a, float32x4_t& b, float32x4_t& c, float32x4_t& d) {
  const float32x4_t ab0 = vtrn1q_f32(a, b), ab1 = vtrn2q_f32(a, b), cd0 = vtrn1q_f32(c, d), cd1 = vtrn2q_f32(c, d);
  const auto low = [](float32x4_t x, float32x4_t y) {
    return vreinterpretq_f32_f64(vtrn1q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
  };
  const auto high = [](float32x4_t x, float32x4_t y) {
    return vreinterpretq_f32_f64(vtrn2q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
  };
  a = low(ab0, cd0);
  b = low(ab1, cd1);
  c = high(ab0, cd0);
  d = high(ab1, cd1);
}
OP void transpose(F r[8]) {
  transpose4(r[0].a, r[1].a, r[2].a, r[3].a);
  transpose4(r[0].b, r[1].b, r[2].b, r[3].b);
  transpose4(r[4].a, r[5].a, r[6].a, r[7].a);
  transpose4(r[4].b, r[5].b, r[6].b, r[7].b);
  for (int i = 0; i < 4; ++i) {
    const float32x4_t t = r[i].b;
    r[i].b = r[i + 4].a;
    r[i + 4].a = t;
  }
}

// Bit FROM of each byte to bit TO, masked.
template <int FROM, int TO>
OP uint8x16_t take_bits(uint8x16_t v, int mask) {
  return vandq_u8(vshlq_u8(v, vdupq_n_s8(TO - FROM)), vdupq_n_u8(static_cast<uint8_t>(mask)));
}

// Quads 2J (even) and 2J+1 (odd) of 4 rows, their table applied; values of 8 bits come out signed.
template <class Q, int J>
OP void quads(const uint8_t* q, int8x16_t& even, int8x16_t& odd) {
  if constexpr (Q::bits == 8) {
    even = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(q + 128 * J), vdupq_n_u8(128)));
    odd = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(q + 128 * J + 64), vdupq_n_u8(128)));
    return;
  }
  constexpr int pair = 4 * (J % 2);  // of the 2-bit fields of a line
  uint8x16_t e, o;
  if constexpr (Q::bits >= 4) {
    const uint8x16_t line = vld1q_u8(q + 64 * J);
    e = vandq_u8(line, vdupq_n_u8(15)), o = vshrq_n_u8(line, 4);
  } else if constexpr (Q::bits >= 2) {
    const uint8x16_t line = vld1q_u8(q + 64 * (J / 2));
    e = take_bits<pair, 0>(line, 3), o = take_bits<pair + 2, 0>(line, 3);
  } else {
    const uint8x16_t line = vld1q_u8(q);
    e = take_bits<2 * J, 0>(line, 1), o = take_bits<2 * J + 1, 0>(line, 1);
  }
  if constexpr (Q::bits == 5 || Q::bits == 3) {
    constexpr int top = Q::bits - 1;
    const uint8x16_t h = vld1q_u8(q + (Q::bits == 5 ? 256 : 128));
    e = vorrq_u8(e, take_bits<2 * J, top>(h, 1 << top));
    o = vorrq_u8(o, take_bits<2 * J + 1, top>(h, 1 << top));
  }
  if constexpr (Q::bits == 6) {
    const uint8x16_t h = vld1q_u8(q + 256 + 64 * (J / 2));
    e = vorrq_u8(e, take_bits<pair, 4>(h, 48));
    o = vorrq_u8(o, take_bits<pair + 2, 4>(h, 48));
  }
  if constexpr (Q::lookup) {
    const uint8x16_t table = vld1q_u8(Q::table);
    e = vqtbl1q_u8(table, e), o = vqtbl1q_u8(table, o);
    if constexpr (Q::range == 8) e = veorq_u8(e, vdupq_n_u8(128)), o = veorq_u8(o, vdupq_n_u8(128));
  }
  even = vreinterpretq_s8_u8(e);
  odd = vreinterpretq_s8_u8(o);
}

template <class Q, int J, int T, int P>
OP void step(const uint8_t* q, const XBlock* x, I acc[P][T]) {
  constexpr int e = 2 * J % 4, o = e + 1;
  constexpr bool moved = Q::offset && Q::range != 8;
  const int8x16_t offset = vdupq_n_s8(moved ? Q::offset & 127 : 0);
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p) {
    int8x16_t ea, oa, eb, ob;
    quads<Q, J>(q + 32 * p, ea, oa);
    quads<Q, J>(q + 32 * p + 16, eb, ob);
    if constexpr (moved) {
      ea = vsubq_s8(ea, offset), oa = vsubq_s8(oa, offset);
      eb = vsubq_s8(eb, offset), ob = vsubq_s8(ob, offset);
    }
#pragma GCC unroll 8
    for (int m = 0; m < T; ++m) {
      const int8x16_t v = vld1q_s8(x[m].q + 16 * (J / 2));
      acc[p][m].a = vdotq_laneq_s32(vdotq_laneq_s32(acc[p][m].a, ea, v, e), oa, v, o);
      acc[p][m].b = vdotq_laneq_s32(vdotq_laneq_s32(acc[p][m].b, eb, v, e), ob, v, o);
    }
  }
}

template <int T, int P>
OP void clear(I acc[P][T]) {
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int m = 0; m < T; ++m) acc[p][m] = {vdupq_n_s32(0), vdupq_n_s32(0)};
}

template <class Q, int T, int P>
OP void dot(const uint8_t* q, const XBlock* x, I acc[P][T]) {
  clear<T, P>(acc);
  step<Q, 0, T, P>(q, x, acc);
  step<Q, 1, T, P>(q, x, acc);
  step<Q, 2, T, P>(q, x, acc);
  step<Q, 3, T, P>(q, x, acc);
}

template <class Q, int T, int P>
OP void dot_halves(const uint8_t* q, const XBlock* x, I low[P][T], I up[P][T]) {
  clear<T, P>(low);
  clear<T, P>(up);
  step<Q, 0, T, P>(q, x, low);
  step<Q, 1, T, P>(q, x, low);
  step<Q, 2, T, P>(q, x, up);
  step<Q, 3, T, P>(q, x, up);
}

// 255 high + low, the sums of the two planes of 16-bit activations.
OP I join_planes(I high, I low) {
  return {vmlaq_n_s32(low.a, high.a, PLANE), vmlaq_n_s32(low.b, high.b, PLANE)};
}
OP void store_i8(int8_t* p, F v) {
  const int16x8_t w = vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(v.a)), vqmovn_s32(vcvtnq_s32_f32(v.b)));
  vst1_s8(p, vqmovn_s16(w));
}

OP void quantize_block(const float* x, XBlock* out) {
  float32x4_t v[8], most = vdupq_n_f32(0);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    v[i] = vld1q_f32(x + 4 * i);
    most = vmaxq_f32(most, vabsq_f32(v[i]));
  }
  const float top = vmaxvq_f32(most);
  const float inverse = top >= LEAST_ACTIVATION ? 127.0f / top : 0.0f;
  int32x4_t q[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) q[i] = vcvtnq_s32_f32(vmulq_n_f32(v[i], inverse));
  int32x4_t first = vdupq_n_s32(0), second = first;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    first = vaddq_s32(first, q[i]);
    second = vaddq_s32(second, q[i + 4]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const int16x8_t a = vcombine_s16(vqmovn_s32(q[4 * i]), vqmovn_s32(q[4 * i + 1]));
    const int16x8_t b = vcombine_s16(vqmovn_s32(q[4 * i + 2]), vqmovn_s32(q[4 * i + 3]));
    vst1q_s8(out->q + 16 * i, vcombine_s8(vqmovn_s16(a), vqmovn_s16(b)));
  }
  out->d = top * (1.0f / 127.0f);
  set_sums(out, vaddvq_s32(first), vaddvq_s32(second));
}

}  // namespace llmrun::LLMRUN_BUILD
