// Elements of 16 and 8 bits: bf16 and e4m3, widened to fp32 and rounded to them.

#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace mux {

inline float wide(float value) { return value; }
inline float wide(uint16_t value) {
    const uint32_t bits = uint32_t(value) << 16;
    float found;
    std::memcpy(&found, &bits, 4);
    return found;
}

inline float wide(int8_t value) { return float(value); }
inline float wide(uint8_t value) { // of e4m3
    const uint32_t bits = uint32_t(value & 0x7f) << 20;
    float found;
    std::memcpy(&found, &bits, 4);
    found = (value & 0x7f) == 0x7f ? NAN : found * 0x1p120f;
    return value & 0x80 ? -found : found;
}

// bytes: of e4m3, with the highest bit of each in all bits above it.
inline __m256 of_fp8(__m256i bytes) {
    // Sign, exponent and mantissa at the places of fp32, whose bias is 120 more; right for small
    // numbers without a leading one, too. The one pattern for "not a number" is not looked for.
    const __m256i places = _mm256_set1_epi32(int(0x87f00000));
    const __m256i bits = _mm256_and_si256(_mm256_slli_epi32(bytes, 20), places);
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p120f));
}

// To the nearest, of two the even one.
inline uint16_t narrow(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return std::isnan(value) ? 0x7fc0 : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// The nearest number of e4m3, of two the even one; beyond the largest that; NaN if not finite.
inline uint8_t narrow_fp8(float value) {
    const float size = std::fmin(std::fabs(value), 448.0f), lifted = size + 16384.0f;
    uint32_t whole, bits, small;
    std::memcpy(&whole, &value, 4);
    std::memcpy(&bits, &size, 4);
    std::memcpy(&small, &lifted, 4);
    // below 2^-6 steps are 2^-9, as those of fp32 are at 2^14
    const uint32_t found = size < 0x1p-6f
                               ? small - 0x46800000u
                               : ((bits + 0x7ffff + ((bits >> 20) & 1)) >> 20) - (120u << 3);
    return uint8_t((std::isfinite(value) ? found : 0x7f) | ((whole >> 24) & 0x80));
}

inline float rounded(float value) { return wide(narrow(value)); }

inline __m256 rounded(__m256 values) {
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i cut = _mm256_and_si256(up, _mm256_set1_epi32(int(0xffff0000)));
    const __m256 is_nan = _mm256_cmp_ps(values, values, _CMP_UNORD_Q);
    return _mm256_blendv_ps(_mm256_castsi256_ps(cut), values, is_nan);
}

inline void round_all(float *values, int64_t count) {
    int64_t place = 0;
    for (; place + 8 <= count; place += 8)
        _mm256_storeu_ps(values + place, rounded(_mm256_loadu_ps(values + place)));
    for (; place < count; ++place)
        values[place] = rounded(values[place]);
}

} // namespace mux
