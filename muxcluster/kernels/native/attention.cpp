// Keys and values in the pool's blocks: turned and written for new tokens, and attended over by
// rows of one new token each. Elements are fp32, bf16, or rounded to 8 bits as kernels/layout.py
// says; arithmetic is in fp32.

#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "attention.h"
#include "elements.h"
#include "exponential.h"
#include "team.h"

namespace mux {
namespace {

constexpr int64_t LANES = 8;
constexpr int MOST_QUERIES = 4; // of a KV head that read a key together

inline __m256 load(const float *at) { return _mm256_loadu_ps(at); }
inline __m256 load(const uint16_t *at) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i *>(at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

inline __m256 load(const int8_t *at) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(at));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
inline __m256 load(const uint8_t *at) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(at));
    const __m256i wide = _mm256_cvtepi8_epi32(bytes), rest = _mm256_set1_epi32(0x7f);
    const __m256i is_nan = _mm256_cmpeq_epi32(_mm256_and_si256(wide, rest), rest);
    return _mm256_or_ps(of_fp8(wide), _mm256_castsi256_ps(is_nan)); // all ones are NaN
}

// The scale behind a key or value of int8.
inline float scale_of(const int8_t *slot, int64_t head_dim) {
    float scale;
    std::memcpy(&scale, slot + head_dim, 4);
    return scale;
}

inline float sum_of(__m256 lanes) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}

// Four sums over the lanes of four registers.
inline __m128 sums_of(__m256 a, __m256 b, __m256 c, __m256 d) {
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
}

// scores[query * stride + key] of K keys (`step` elements apart) for Q queries of `head_dim`
// elements; K * Q is a multiple of four.
template <int Q, int K, typename Element>
inline void scores_of(const float *queries, const Element *keys, int64_t step, int64_t head_dim,
                      float *scores, int64_t stride) {
    static_assert(K * Q % 4 == 0);
    __m256 sums[K * Q];
    for (__m256 &sum : sums)
        sum = _mm256_setzero_ps();
    int64_t place = 0;
    for (; place + LANES <= head_dim; place += LANES)
        for (int key = 0; key < K; ++key) {
            const __m256 elements = load(keys + key * step + place);
            for (int query = 0; query < Q; ++query)
                sums[key * Q + query] = _mm256_fmadd_ps(load(queries + query * head_dim + place),
                                                        elements, sums[key * Q + query]);
        }
    alignas(16) float found[K * Q];
    for (int each = 0; each < K * Q; each += 4)
        _mm_store_ps(found + each,
                     sums_of(sums[each], sums[each + 1], sums[each + 2], sums[each + 3]));
    for (int key = 0; key < K; ++key) {
        const Element *at = keys + key * step;
        for (int query = 0; query < Q; ++query) {
            float sum = found[key * Q + query];
            for (int64_t rest = place; rest < head_dim; ++rest)
                sum += queries[query * head_dim + rest] * wide(at[rest]);
            if constexpr (std::is_same_v<Element, int8_t>)
                sum *= scale_of(at, head_dim);
            scores[query * stride + key] = sum;
        }
    }
}

// Ask for keys or values of a block before they are needed: blocks lie anywhere.
inline void fetch(const void *at, int64_t num_bytes) {
    for (int64_t place = 0; place < num_bytes; place += 64)
        _mm_prefetch(static_cast<const char *>(at) + place, _MM_HINT_T0);
}

// Add `W` registers of the values of `count` tokens (`step` elements apart), weighted, to outputs
// [Q, head_dim]. weights: of query q and token t at q * stride + t.
template <int Q, int W, typename Element>
inline void add_stripe(const Element *values, int64_t step, int64_t count, int64_t head_dim,
                       const float *weights, int64_t stride, float *outputs) {
    __m256 sums[Q][W];
    for (int query = 0; query < Q; ++query)
        for (int part = 0; part < W; ++part)
            sums[query][part] = load(outputs + query * head_dim + part * LANES);
    for (int64_t token = 0; token < count; ++token) {
        __m256 elements[W];
        for (int part = 0; part < W; ++part)
            elements[part] = load(values + token * step + part * LANES);
        for (int query = 0; query < Q; ++query) {
            const __m256 weight = _mm256_broadcast_ss(weights + query * stride + token);
            for (int part = 0; part < W; ++part)
                sums[query][part] = _mm256_fmadd_ps(weight, elements[part], sums[query][part]);
        }
    }
    for (int query = 0; query < Q; ++query)
        for (int part = 0; part < W; ++part)
            _mm256_storeu_ps(outputs + query * head_dim + part * LANES, sums[query][part]);
}

// As `add_stripe`, of whole values.
template <int Q, typename Element>
inline void add_values(const Element *values, int64_t step, int64_t count, int64_t head_dim,
                       const float *weights, int64_t stride, float *outputs) {
    constexpr int W = Q == 1 ? 8 : Q == 2 ? 4 : 2; // what 16 registers hold
    int64_t place = 0;
    for (; place + W * LANES <= head_dim; place += W * LANES)
        add_stripe<Q, W>(values + place, step, count, head_dim, weights, stride, outputs + place);
    for (; place + LANES <= head_dim; place += LANES)
        add_stripe<Q, 1>(values + place, step, count, head_dim, weights, stride, outputs + place);
    for (; place < head_dim; ++place)
        for (int query = 0; query < Q; ++query) {
            float sum = outputs[query * head_dim + place];
            for (int64_t token = 0; token < count; ++token)
                sum += weights[query * stride + token] * wide(values[token * step + place]);
            outputs[query * head_dim + place] = sum;
        }
}

// Turn scores into weights whose sum is 1; return the logarithm of the sum of exponentials.
float softmax(float *scores, int64_t count, float scale, float soft_cap) {
    float most = -std::numeric_limits<float>::infinity();
    for (int64_t token = 0; token < count; ++token) {
        float score = scores[token] * scale;
        if (soft_cap > 0.0f)
            score = soft_cap * std::tanh(score / soft_cap);
        scores[token] = score;
        most = std::max(most, score);
    }
    float total = 0.0f;
    int64_t token = 0;
    const __m256 top = _mm256_set1_ps(most);
    __m256 totals = _mm256_setzero_ps();
    for (; token + LANES <= count; token += LANES) {
        const __m256 found = exponential(_mm256_sub_ps(load(scores + token), top));
        _mm256_storeu_ps(scores + token, found);
        totals = _mm256_add_ps(totals, found);
    }
    total = sum_of(totals);
    for (; token < count; ++token)
        total += scores[token] = std::exp(scores[token] - most);
    const float factor = 1.0f / total;
    for (token = 0; token < count; ++token)
        scores[token] *= factor;
    return most + std::log(total);
}

// `Q` queries of one row that share a KV head. outputs: [Q, head_dim]. scores: scratch [Q, tokens].
template <int Q, typename Element>
void attend(const Layer &layer, int64_t sequence, int64_t head, int64_t begin, int64_t end,
            float scale, float soft_cap, const float *queries, float *scores, float *outputs,
            float *log_sums) {
    const int64_t tokens = end - begin, size = layer.block_tokens, head_dim = layer.head_dim;
    // From one position to the next, in memory.
    const int64_t slot = layer.slot<Element>(), step = layer.from_right[sequence] ? -slot : slot;
    const int64_t half = layer.half<Element>();
    // Where the tokens of a block begin in memory, from `first` to `until`.
    const auto lowest = [&](const Element *at, int64_t first, int64_t until) {
        return step < 0 ? at + (until - 1 - first) * step : at;
    };
    // Calls work(key of a block's first token, its position, the next block's first position, what
    // of the next block comes first in memory, its bytes).
    const auto each_block = [&](const auto &work) {
        const Element *at = layer.key<Element>(sequence, head, begin);
        for (int64_t position = begin; position < end;) {
            const int64_t until = std::min(end, (position / size + 1) * size);
            const Element *next = at;
            int64_t num_next = 0;
            if (until < end) {
                next = layer.key<Element>(sequence, head, until);
                num_next = std::min(end - until, size);
            }
            work(at, position, until, lowest(next, 0, num_next ? num_next : 1),
                 num_next * slot * int64_t(sizeof(Element)));
            at = next;
            position = until;
        }
    };
    each_block([&](const Element *at, int64_t position, int64_t until, const Element *next,
                   int64_t next_bytes) {
        constexpr int K = Q == 4 ? 2 : 4; // keys at once: what 16 registers hold
        fetch(next, next_bytes);
        float *found = scores + position - begin;
        for (; position + K <= until; position += K, at += K * step, found += K)
            scores_of<Q, K>(queries, at, step, head_dim, found, tokens);
        for (; position < until; ++position, at += step, ++found) {
            // the last ones one by one: the same key four times
            float some[Q * 4];
            scores_of<Q, 4>(queries, at, 0, head_dim, some, 4);
            for (int query = 0; query < Q; ++query)
                found[query * tokens] = some[query * 4];
        }
    });
    for (int each = 0; each < Q; ++each) {
        const float found = softmax(scores + each * tokens, tokens, scale, soft_cap);
        if (log_sums)
            log_sums[each] = found;
    }
    std::fill_n(outputs, Q * head_dim, 0.0f);
    each_block([&](const Element *at, int64_t position, int64_t until, const Element *next,
                   int64_t next_bytes) {
        fetch(next + half, next_bytes);
        const Element *values = at + half;
        if constexpr (std::is_same_v<Element, int8_t>)
            for (int64_t token = position; token < until; ++token) {
                const float factor = scale_of(values + (token - position) * step, head_dim);
                for (int query = 0; query < Q; ++query)
                    scores[query * tokens + token - begin] *= factor;
            }
        add_values<Q>(values, step, until - position, head_dim, scores + position - begin, tokens,
                      outputs);
    });
}

template <typename Element>
void attend_head(const Layer &layer, int64_t sequence, int64_t head, int64_t begin, int64_t end,
                int64_t group, float scale, float soft_cap, const float *queries,
                std::vector<float> &scores, float *outputs, float *log_sums) {
    if (end <= begin) {
        std::fill_n(outputs, group * layer.head_dim, 0.0f);
        return;
    }
    using Attend = void (*)(const Layer &, int64_t, int64_t, int64_t, int64_t, float, float,
                            const float *, float *, float *, float *);
    constexpr Attend sizes[MOST_QUERIES + 1] = {nullptr, attend<1, Element>, attend<2, Element>,
                                                attend<3, Element>, attend<4, Element>};
    scores.resize(size_t(MOST_QUERIES * (end - begin)));
    for (int64_t query = 0; query < group; query += MOST_QUERIES) {
        const int64_t count = std::min<int64_t>(MOST_QUERIES, group - query);
        sizes[count](layer, sequence, head, begin, end, scale, soft_cap,
                     queries + query * layer.head_dim, scores.data(),
                     outputs + query * layer.head_dim, log_sums ? log_sums + query : nullptr);
    }
}

// Keys and values that are in bf16 already.
void write_halves(const Layer &layer, int64_t tokens, int64_t kv_heads, const int64_t *sequences,
                  const int64_t *positions, const uint16_t *keys, int64_t key_stride,
                  const uint16_t *values, int64_t value_stride) {
    const size_t num_bytes = size_t(layer.head_dim) * sizeof(uint16_t);
    for (int64_t token = 0; token < tokens; ++token)
        for (int64_t head = 0; head < kv_heads; ++head) {
            uint16_t *place = layer.key<uint16_t>(sequences[token], head, positions[token]);
            std::memcpy(place, keys + token * key_stride + head * layer.head_dim, num_bytes);
            std::memcpy(place + layer.half<uint16_t>(),
                        values + token * value_stride + head * layer.head_dim, num_bytes);
        }
}

void store(const float *numbers, int64_t count, float *at) {
    std::memcpy(at, numbers, size_t(count) * sizeof(float));
}

void store(const float *numbers, int64_t count, uint16_t *at) {
    for (int64_t place = 0; place < count; ++place)
        at[place] = narrow(numbers[place]);
}

// Without it, product and sum would be rounded once, where torch rounds twice.
__attribute__((optimize("fp-contract=off"))) void store(const float *numbers, int64_t count,
                                                        int8_t *at) {
    float largest = 0.0f;
    for (int64_t place = 0; place < count; ++place) {
        const float size = std::fabs(numbers[place]);
        largest = size > largest || std::isnan(size) ? size : largest;
        if (std::isnan(largest))
            break;
    }
    const float factor = 127.0f / std::max(largest, 1e-30f), scale = largest / 127.0f;
    for (int64_t place = 0; place < count; ++place) {
        const float element = numbers[place] * factor;
        at[place] = std::isfinite(element) ? int8_t(std::floor(element + 0.5f)) : int8_t(0);
    }
    std::memcpy(at + count, &scale, 4);
}

void store(const float *numbers, int64_t count, uint8_t *at) {
    for (int64_t place = 0; place < count; ++place)
        at[place] = narrow_fp8(numbers[place]);
}

template <typename Element>
void write_slots(const Layer &layer, int64_t sequence, int64_t head, int64_t position,
                 const float *key, const float *value) {
    Element *at = layer.key<Element>(sequence, head, position);
    store(key, layer.head_dim, at);
    store(value, layer.head_dim, at + layer.half<Element>());
}

} // namespace

void write_head(int stored, const Layer &layer, int64_t sequence, int64_t head, int64_t position,
                const float *key, const float *value) {
    const auto run = stored == FP32   ? write_slots<float>
                     : stored == BF16 ? write_slots<uint16_t>
                     : stored == INT8 ? write_slots<int8_t>
                                      : write_slots<uint8_t>;
    run(layer, sequence, head, position, key, value);
}

void attend_row(int stored, const Layer &layer, int64_t sequence, int64_t head, int64_t begin,
                int64_t end, int64_t group, float scale, float soft_cap, const float *queries,
                std::vector<float> &scores, float *outputs, float *log_sums) {
    const auto run = stored == FP32   ? attend_head<float>
                     : stored == BF16 ? attend_head<uint16_t>
                     : stored == INT8 ? attend_head<int8_t>
                                      : attend_head<uint8_t>;
    run(layer, sequence, head, begin, end, group, scale, soft_cap, queries, scores, outputs,
        log_sums);
}

void turn_head(float *pair, int64_t head_dim, const float *turns) {
    for (int64_t place = 0; place < head_dim; place += 2) {
        const float first = pair[place], second = pair[place + 1];
        const float cosine = turns[place], sine = turns[place + 1];
        pair[place] = first * cosine - second * sine;
        pair[place + 1] = first * sine + second * cosine;
    }
}

} // namespace mux

using mux::Layer;

// Turn neighbouring pairs of elements of [tokens, heads, head_dim] (`stride` apart) in place, by
// complex numbers [tokens, head_dim / 2].
extern "C" void mux_turn(float *elements, int64_t tokens, int64_t stride, int64_t heads,
                         int64_t head_dim, const float *turns) {
    for (int64_t token = 0; token < tokens; ++token, turns += head_dim)
        for (int64_t head = 0; head < heads; ++head)
            mux::turn_head(elements + token * stride + head * head_dim, head_dim, turns);
}

// Write keys and values [tokens, kv_heads, head_dim] (`*_stride` elements from token to token): of
// bf16 in bf16, else in fp32.
extern "C" void mux_kv_write(int stored, uint8_t *pool, int64_t block_bytes, int64_t block_tokens,
                             int64_t head_dim, const int32_t *table, int64_t per_sequence,
                             int64_t per_head, const bool *from_right, int64_t tokens,
                             int64_t kv_heads, const int64_t *sequences, const int64_t *positions,
                             const void *keys, int64_t key_stride, const void *values,
                             int64_t value_stride) {
    const Layer layer = {pool,  block_bytes,  block_tokens, head_dim,
                         table, per_sequence, per_head,     from_right};
    if (stored == mux::BF16)
        mux::write_halves(layer, tokens, kv_heads, sequences, positions,
                          static_cast<const uint16_t *>(keys), key_stride,
                          static_cast<const uint16_t *>(values), value_stride);
    else
        for (int64_t token = 0; token < tokens; ++token)
            for (int64_t head = 0; head < kv_heads; ++head)
                mux::write_head(stored, layer, sequences[token], head, positions[token],
                                static_cast<const float *>(keys) + token * key_stride +
                                    head * head_dim,
                                static_cast<const float *>(values) + token * value_stride +
                                    head * head_dim);
}

// outputs [rows, kv_heads, group, head_dim] of queries like it, both fp32, each row over positions
// `begins` to `ends` of its sequence. log_sums: [rows, kv_heads, group], or none.
extern "C" void mux_decode(int stored, const uint8_t *pool, int64_t block_bytes,
                           int64_t block_tokens, int64_t head_dim, const int32_t *table,
                           int64_t per_sequence, int64_t per_head, const bool *from_right,
                           int64_t rows, int64_t kv_heads, int64_t group, const int64_t *sequences,
                           const int64_t *begins, const int64_t *ends, float scale,
                           float soft_cap, const float *queries, float *outputs, float *log_sums,
                           int num_threads) {
    const Layer layer = {const_cast<uint8_t *>(pool), block_bytes,  block_tokens, head_dim, table,
                         per_sequence,                per_head,     from_right};
    int64_t work = 0;
    for (int64_t row = 0; row < rows; ++row)
        work += (ends[row] - begins[row]) * kv_heads * group * head_dim;
    const int threads = work < mux::THREAD_WORK ? 1 : num_threads;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        static thread_local std::vector<float> scores;
#pragma omp for schedule(dynamic, 1)
        for (int64_t place = 0; place < rows * kv_heads; ++place) {
            const int64_t row = place / kv_heads, head = place % kv_heads;
            const int64_t at = place * group;
            mux::attend_row(stored, layer, sequences[row], head, begins[row], ends[row], group,
                            scale, soft_cap, queries + at * head_dim, scores,
                            outputs + at * head_dim, log_sums ? log_sums + at : nullptr);
        }
    }
}
