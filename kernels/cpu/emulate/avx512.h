// AVX-512 and AVX-VNNI in plain C++: what simd_avx512.h and simd_avx2.h use of them, one function each, so that those
// builds can be run and tested on a CPU without the instructions (-DLLMRUN_EMULATE=ON; never in a release).
//
// Semantics are those of the instructions, written from Intel's manual. A new intrinsic in a build needs a line here.
#pragma once
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

namespace llmrun::emulated {

struct Floats {
  alignas(64) float v[16];
};
struct Ints {
  alignas(64) int32_t v[16];
};
struct Doubles {
  alignas(64) double v[8];
};

#define EM static inline __attribute__((always_inline))

template <class To, class From>
EM To bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

template <class Op>
EM Floats each(Op op) {
  Floats r;
  for (int i = 0; i < 16; ++i) r.v[i] = op(i);
  return r;
}
template <class Op>
EM Ints each_int(Op op) {
  Ints r;
  for (int i = 0; i < 16; ++i) r.v[i] = static_cast<int32_t>(op(i));
  return r;
}
struct Bytes {
  alignas(64) uint8_t v[64];
};
struct Words {
  alignas(64) uint16_t v[32];
};

EM uint32_t u(int32_t v) { return static_cast<uint32_t>(v); }

// Floats.
EM Floats setzero_ps() { return each([](int) { return 0.0f; }); }
EM Floats set1_ps(float a) { return each([=](int) { return a; }); }
EM Floats loadu_ps(const void* p) {
  Floats r;
  memcpy(&r, p, sizeof r);
  return r;
}
EM void storeu_ps(void* p, const Floats& a) { memcpy(p, &a, sizeof a); }
EM Floats maskz_loadu_ps(__mmask16 k, const void* p) {
  return each([=](int i) { return k >> i & 1 ? static_cast<const float*>(p)[i] : 0.0f; });
}
EM void mask_storeu_ps(void* p, __mmask16 k, const Floats& a) {
  for (int i = 0; i < 16; ++i)
    if (k >> i & 1) static_cast<float*>(p)[i] = a.v[i];
}
EM Floats add_ps(const Floats& a, const Floats& b) { return each([&](int i) { return a.v[i] + b.v[i]; }); }
EM Floats sub_ps(const Floats& a, const Floats& b) { return each([&](int i) { return a.v[i] - b.v[i]; }); }
EM Floats mul_ps(const Floats& a, const Floats& b) { return each([&](int i) { return a.v[i] * b.v[i]; }); }
EM Floats div_ps(const Floats& a, const Floats& b) { return each([&](int i) { return a.v[i] / b.v[i]; }); }
EM Floats fmadd_ps(const Floats& a, const Floats& b, const Floats& c) {
  return each([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
// The second operand where one is NaN, as the instruction does.
EM Floats max_ps(const Floats& a, const Floats& b) { return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
EM Floats min_ps(const Floats& a, const Floats& b) { return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
EM Floats abs_ps(const Floats& a) { return each([&](int i) { return __builtin_fabsf(a.v[i]); }); }
EM Floats roundscale_ps(const Floats& a, int) { return each([&](int i) { return nearbyintf(a.v[i]); }); }
EM Floats scalef_ps(const Floats& a, const Floats& n) {
  return each([&](int i) { return n.v[i] == n.v[i] ? ldexpf(a.v[i], static_cast<int>(floorf(n.v[i]))) : n.v[i]; });
}
EM Floats mask_mov_ps(const Floats& a, __mmask16 k, const Floats& b) {
  return each([&](int i) { return k >> i & 1 ? b.v[i] : a.v[i]; });
}
EM Floats maskz_mov_ps(__mmask16 k, const Floats& b) { return mask_mov_ps(setzero_ps(), k, b); }
EM __mmask16 cmp_ps_mask(const Floats& a, const Floats& b, int) {  // _CMP_ORD_Q only
  unsigned k = 0;
  for (int i = 0; i < 16; ++i) k |= static_cast<unsigned>(a.v[i] == a.v[i] && b.v[i] == b.v[i]) << i;
  return static_cast<__mmask16>(k);
}
template <class T, class Op>
EM T reduced(const T* v, Op op) {  // halves onto each other, as the compilers' sequence does
  T t[16];
  memcpy(t, v, sizeof t);
  for (int n = 8; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) t[i] = op(t[i], t[i + n]);
  return t[0];
}
EM float reduce_add_ps(const Floats& a) { return reduced(a.v, [](float x, float y) { return x + y; }); }
EM float reduce_max_ps(const Floats& a) { return reduced(a.v, [](float x, float y) { return x > y ? x : y; }); }
EM Floats shuffle_f32x4(const Floats& a, const Floats& b, int how) {
  return each([&](int i) {
    const int from = how >> (2 * (i / 4)) & 3;
    return (i < 8 ? a : b).v[4 * from + i % 4];
  });
}
EM Floats unpack_ps(const Floats& a, const Floats& b, int high) {
  return each([&](int i) { return (i % 2 ? b : a).v[i / 4 * 4 + 2 * high + i % 4 / 2]; });
}
EM Doubles unpack_pd(const Doubles& a, const Doubles& b, int high) {
  Doubles r;
  for (int i = 0; i < 8; ++i) r.v[i] = (i % 2 ? b : a).v[i / 2 * 2 + high];
  return r;
}

// Integers.
EM Ints setzero_si512() { return each_int([](int) { return 0; }); }
EM Ints set1_epi32(int a) { return each_int([=](int) { return a; }); }
EM Ints set1_epi8(char a) {
  Bytes r;
  memset(r.v, a, sizeof r);
  return bits<Ints>(r);
}
EM Ints loadu_si512(const void* p) {
  Ints r;
  memcpy(&r, p, sizeof r);
  return r;
}
EM void storeu_si512(void* p, const Ints& a) { memcpy(p, &a, sizeof a); }
EM Ints add_epi32(const Ints& a, const Ints& b) { return each_int([&](int i) { return u(a.v[i]) + u(b.v[i]); }); }
EM Ints sub_epi32(const Ints& a, const Ints& b) { return each_int([&](int i) { return u(a.v[i]) - u(b.v[i]); }); }
EM Ints mullo_epi32(const Ints& a, const Ints& b) { return each_int([&](int i) { return u(a.v[i]) * u(b.v[i]); }); }
EM Ints and_si512(const Ints& a, const Ints& b) { return each_int([&](int i) { return a.v[i] & b.v[i]; }); }
EM Ints slli_epi32(const Ints& a, unsigned n) { return each_int([&](int i) { return u(a.v[i]) << n; }); }
EM Ints slli_epi16(const Ints& a, unsigned n) {
  Words w = bits<Words>(a);
  for (uint16_t& v : w.v) v = static_cast<uint16_t>(v << n);
  return bits<Ints>(w);
}
EM Ints srli_epi16(const Ints& a, unsigned n) {
  Words w = bits<Words>(a);
  for (uint16_t& v : w.v) v = static_cast<uint16_t>(v >> n);
  return bits<Ints>(w);
}
EM Ints mask_sllv_epi32(const Ints& rest, __mmask16 k, const Ints& a, const Ints& n) {
  return each_int([&](int i) -> uint32_t {
    if (!(k >> i & 1)) return u(rest.v[i]);
    return u(n.v[i]) > 31 ? 0 : u(a.v[i]) << n.v[i];
  });
}
EM __mmask16 cmplt_epi32_mask(const Ints& a, const Ints& b) {
  unsigned k = 0;
  for (int i = 0; i < 16; ++i) k |= static_cast<unsigned>(a.v[i] < b.v[i]) << i;
  return static_cast<__mmask16>(k);
}
EM Ints ternarylogic_epi32(const Ints& a, const Ints& b, const Ints& c, int table) {
  return each_int([&](int i) {
    uint32_t r = 0;
    for (int bit = 0; bit < 32; ++bit) {
      const uint32_t at = (u(a.v[i]) >> bit & 1) << 2 | (u(b.v[i]) >> bit & 1) << 1 | (u(c.v[i]) >> bit & 1);
      r |= static_cast<uint32_t>(table >> at & 1) << bit;
    }
    return r;
  });
}
EM Ints shuffle_epi8(const Ints& table, const Ints& at) {
  const Bytes t = bits<Bytes>(table), a = bits<Bytes>(at);
  Bytes r;
  for (int i = 0; i < 64; ++i) r.v[i] = a.v[i] & 0x80 ? 0 : t.v[i / 16 * 16 + (a.v[i] & 15)];
  return bits<Ints>(r);
}
EM Ints broadcast_i32x4(__m128i a) {
  alignas(16) int32_t v[4];
  memcpy(v, &a, sizeof v);
  return each_int([&](int i) { return v[i % 4]; });
}
EM int32_t dot4(uint32_t a, uint32_t b) {  // u8 x s8
  int32_t sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<int32_t>(a >> 8 * i & 255) * static_cast<int8_t>(b >> 8 * i & 255);
  return sum;
}
EM Ints dpbusd_epi32(const Ints& c, const Ints& a, const Ints& b) {
  return each_int([&](int i) { return u(c.v[i]) + u(dot4(u(a.v[i]), u(b.v[i]))); });
}
EM int reduce_add_epi32(const Ints& a) {
  uint32_t sum = 0;
  for (int32_t v : a.v) sum += u(v);
  return static_cast<int>(sum);
}

// Conversions.
EM Floats cvtepi32_ps(const Ints& a) { return each([&](int i) { return static_cast<float>(a.v[i]); }); }
EM int32_t to_int(float a) {  // what does not fit becomes the least integer, as the instruction does
  const float r = nearbyintf(a);
  return r >= -2147483648.0f && r < 2147483648.0f ? static_cast<int32_t>(r) : INT32_MIN;
}
EM Ints cvtps_epi32(const Floats& a) { return each_int([&](int i) { return to_int(a.v[i]); }); }
EM Ints maskz_cvtps_epi32(__mmask16 k, const Floats& a) {
  return each_int([&](int i) { return k >> i & 1 ? to_int(a.v[i]) : 0; });
}
template <class T>
EM Ints widened(const void* p) {
  T v[16];
  memcpy(v, p, sizeof v);
  return each_int([&](int i) { return static_cast<int32_t>(v[i]); });
}
EM Ints cvtepu8_epi32(__m128i a) { return widened<uint8_t>(&a); }
EM Ints cvtepi8_epi32(__m128i a) { return widened<int8_t>(&a); }
EM Ints cvtepu16_epi32(__m256i a) { return widened<uint16_t>(&a); }
EM Floats cvtph_ps(__m256i a) {
  Floats r;
  _mm256_storeu_ps(r.v, _mm256_cvtph_ps(_mm256_castsi256_si128(a)));
  _mm256_storeu_ps(r.v + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)));
  return r;
}
EM __m256i cvtps_ph(const Floats& a, int) {
  const __m128i low = _mm256_cvtps_ph(_mm256_loadu_ps(a.v), 0), high = _mm256_cvtps_ph(_mm256_loadu_ps(a.v + 8), 0);
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}
EM __m128i cvtsepi32_epi8(const Ints& a) {
  alignas(16) int8_t r[16];
  for (int i = 0; i < 16; ++i) r[i] = static_cast<int8_t>(a.v[i] > 127 ? 127 : a.v[i] < -128 ? -128 : a.v[i]);
  return _mm_load_si128(reinterpret_cast<const __m128i*>(r));
}
EM __m256i maskz_loadu_epi16(__mmask16 k, const void* p) {
  alignas(32) uint16_t v[16];
  for (int i = 0; i < 16; ++i) v[i] = k >> i & 1 ? static_cast<const uint16_t*>(p)[i] : 0;
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(v));
}

// 256 bits: AVX-VNNI.
EM __m256i dpbusd_256(__m256i c, __m256i a, __m256i b) {
  alignas(32) uint32_t x[8], y[8], z[8];
  memcpy(x, &a, sizeof x), memcpy(y, &b, sizeof y), memcpy(z, &c, sizeof z);
  for (int i = 0; i < 8; ++i) z[i] += static_cast<uint32_t>(dot4(x[i], y[i]));
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(z));
}

}  // namespace llmrun::emulated

#define __m512 llmrun::emulated::Floats
#define __m512i llmrun::emulated::Ints
#define __m512d llmrun::emulated::Doubles
#define _mm256_dpbusd_avx_epi32 llmrun::emulated::dpbusd_256
#define _mm256_maskz_loadu_epi16 llmrun::emulated::maskz_loadu_epi16
#define _mm512_abs_ps llmrun::emulated::abs_ps
#define _mm512_add_epi32 llmrun::emulated::add_epi32
#define _mm512_add_ps llmrun::emulated::add_ps
#define _mm512_and_si512 llmrun::emulated::and_si512
#define _mm512_broadcast_i32x4 llmrun::emulated::broadcast_i32x4
#define _mm512_castpd_ps llmrun::emulated::bits<llmrun::emulated::Floats>
#define _mm512_castsi512_ps llmrun::emulated::bits<llmrun::emulated::Floats>
#define _mm512_cmp_ps_mask llmrun::emulated::cmp_ps_mask
#define _mm512_cmplt_epi32_mask llmrun::emulated::cmplt_epi32_mask
#define _mm512_cvtepi32_ps llmrun::emulated::cvtepi32_ps
#define _mm512_cvtepi8_epi32 llmrun::emulated::cvtepi8_epi32
#define _mm512_cvtepu16_epi32 llmrun::emulated::cvtepu16_epi32
#define _mm512_cvtepu8_epi32 llmrun::emulated::cvtepu8_epi32
#define _mm512_cvtph_ps llmrun::emulated::cvtph_ps
#define _mm512_cvtps_epi32 llmrun::emulated::cvtps_epi32
#define _mm512_cvtps_ph llmrun::emulated::cvtps_ph
#define _mm512_cvtsepi32_epi8 llmrun::emulated::cvtsepi32_epi8
#define _mm512_div_ps llmrun::emulated::div_ps
#define _mm512_dpbusd_epi32 llmrun::emulated::dpbusd_epi32
#define _mm512_fmadd_ps llmrun::emulated::fmadd_ps
#define _mm512_loadu_ps llmrun::emulated::loadu_ps
#define _mm512_loadu_si512 llmrun::emulated::loadu_si512
#define _mm512_mask_mov_ps llmrun::emulated::mask_mov_ps
#define _mm512_mask_sllv_epi32 llmrun::emulated::mask_sllv_epi32
#define _mm512_mask_storeu_ps llmrun::emulated::mask_storeu_ps
#define _mm512_maskz_cvtps_epi32 llmrun::emulated::maskz_cvtps_epi32
#define _mm512_maskz_loadu_ps llmrun::emulated::maskz_loadu_ps
#define _mm512_maskz_mov_ps llmrun::emulated::maskz_mov_ps
#define _mm512_max_ps llmrun::emulated::max_ps
#define _mm512_min_ps llmrun::emulated::min_ps
#define _mm512_mul_ps llmrun::emulated::mul_ps
#define _mm512_mullo_epi32 llmrun::emulated::mullo_epi32
#define _mm512_reduce_add_epi32 llmrun::emulated::reduce_add_epi32
#define _mm512_reduce_add_ps llmrun::emulated::reduce_add_ps
#define _mm512_reduce_max_ps llmrun::emulated::reduce_max_ps
#define _mm512_roundscale_ps llmrun::emulated::roundscale_ps
#define _mm512_scalef_ps llmrun::emulated::scalef_ps
#define _mm512_set1_epi32 llmrun::emulated::set1_epi32
#define _mm512_set1_epi8 llmrun::emulated::set1_epi8
#define _mm512_set1_ps llmrun::emulated::set1_ps
#define _mm512_setzero_ps llmrun::emulated::setzero_ps
#define _mm512_setzero_si512 llmrun::emulated::setzero_si512
#define _mm512_shuffle_epi8 llmrun::emulated::shuffle_epi8
#define _mm512_shuffle_f32x4 llmrun::emulated::shuffle_f32x4
#define _mm512_slli_epi16 llmrun::emulated::slli_epi16
#define _mm512_slli_epi32 llmrun::emulated::slli_epi32
#define _mm512_srli_epi16 llmrun::emulated::srli_epi16
#define _mm512_storeu_ps llmrun::emulated::storeu_ps
#define _mm512_storeu_si512 llmrun::emulated::storeu_si512
#define _mm512_sub_epi32 llmrun::emulated::sub_epi32
#define _mm512_sub_ps llmrun::emulated::sub_ps
#define _mm512_ternarylogic_epi32 llmrun::emulated::ternarylogic_epi32
#define _mm512_unpackhi_pd(a, b) llmrun::emulated::unpack_pd(a, b, 1)
#define _mm512_unpackhi_ps(a, b) llmrun::emulated::unpack_ps(a, b, 1)
#define _mm512_unpacklo_pd(a, b) llmrun::emulated::unpack_pd(a, b, 0)
#define _mm512_unpacklo_ps(a, b) llmrun::emulated::unpack_ps(a, b, 0)
