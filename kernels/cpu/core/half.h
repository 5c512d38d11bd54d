// Scalar f16 and bf16 conversions with round to nearest even; used where speed does not matter and by the generic build.
// Everything is static: a copy compiled with wider instructions must never be shared with baseline code.
#pragma once
#include <stdint.h>
#include <string.h>

namespace llmrun {

static inline float bits_to_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

static inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 31u;
  const uint32_t fraction = half & 0x3ffu;
  if (exponent == 31) return bits_to_float(sign | 0x7f800000u | (fraction << 13));
  if (exponent) return bits_to_float(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float small = static_cast<float>(fraction) * 5.9604644775390625e-8f;  // subnormal: fraction * 2^-24
  return sign ? -small : small;
}

// 2^(exponent - 128), subnormal for 0 and 1 (the scale of MXFP4, whose table is doubled).
static inline float power_to_float(uint8_t exponent) {
  return bits_to_float(exponent < 2 ? 0x00200000u << exponent : (exponent - 1u) << 23);
}

// Half of a float of 4 exponent (bias 7) and 3 mantissa bits, below 128: its bits, moved, are those of an f16 that is
// 2^7 times too small.
static inline float byte_float_to_float(uint8_t code) {
  return 128.0f * half_to_float(static_cast<uint16_t>(code << 7));
}

// 2^-8 of an 8-bit float with a sign: 4 exponent bits (bias 7), 3 mantissa bits, no NaN. The same move of bits.
static inline float signed_byte_float(uint8_t code) {
  return half_to_float(static_cast<uint16_t>((code & 0x7f) << 7 | (code & 0x80) << 8));
}

static inline uint16_t float_to_half(float value) {
  const uint32_t bits = float_to_bits(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to infinity
  if (magnitude < 0x38800000u) {  // subnormal or zero: adding 0.5 puts the rounded fraction in the low bits
    return static_cast<uint16_t>(sign | (float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

static inline float bfloat_to_float(uint16_t value) { return bits_to_float(static_cast<uint32_t>(value) << 16); }

static inline uint16_t float_to_bfloat(float value) {
  const uint32_t bits = float_to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace llmrun
