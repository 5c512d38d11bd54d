// What the quants of table types stand for: entry + offset of the type (types.h), so that all entries are unsigned bytes.
// Codes of 1 to 3 bits use the first entries only.
#pragma once
#include <stdint.h>

namespace llmrun {

// Q1_0: minus and plus one; offset 1.
alignas(16) constexpr uint8_t SIGNS[16] = {0, 2};

// IQ4_NL, IQ4_XS: -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113; offset 128.
alignas(16) constexpr uint8_t CURVE[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

// MXFP4, NVFP4: 0 1 2 3 4 6 8 12, then the same with a minus; offset 16.
alignas(16) constexpr uint8_t SMALL_FLOATS[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

// IQ3_XXS: 4 12 20 28 36 44 52 62, then the same with a minus; offset 64.
alignas(16) constexpr uint8_t EIGHT_SIZES[16] = {68, 76, 84, 92, 100, 108, 116, 126, 60, 52, 44, 36, 28, 20, 12, 2};

// IQ3_S: 1 3 5 7 9 11 13 15, then the same with a minus; offset 16.
alignas(16) constexpr uint8_t ODD_SIZES[16] = {17, 19, 21, 23, 25, 27, 29, 31, 15, 13, 11, 9, 7, 5, 3, 1};

// IQ2: 8 25 43 -, then the same with a minus; offset 64.
alignas(16) constexpr uint8_t THREE_SIZES[16] = {72, 89, 107, 64, 56, 39, 21, 64};

// IQ1: eighths of -1 0 1 moved up by one eighth, then moved down: -7 1 9 -, -9 -1 7 -; offset 16.
alignas(16) constexpr uint8_t SHIFTED_TRITS[16] = {9, 17, 25, 16, 7, 15, 23, 16};

}  // namespace llmrun
