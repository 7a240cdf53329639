// Keys and values in the pool's blocks: turned and written for new tokens, and attended over by
// rows of one new token each. Elements are fp32 or bf16; arithmetic is in fp32.

#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "exponential.h"

namespace {

constexpr int64_t LANES = 8;
constexpr int64_t THREAD_WORK = 1 << 17; // multiplications that are worth other threads
constexpr int MOST_QUERIES = 4; // of a KV head that read a key together

// Where a layer's tokens lie. A block holds keys, then values of `block_tokens` tokens of one head;
// sequences fill it from its first place or, where `from_right` says so, from its last.
struct Layer {
    uint8_t *pool;
    int64_t block_bytes, block_tokens, head_dim;
    const int32_t *table; // of sequence s and head h: row s * per_sequence + h * per_head
    int64_t per_sequence, per_head;
    const bool *from_right;

    // The place of a token's key; its value lies half a block behind it.
    template <typename Element>
    Element *key(int64_t sequence, int64_t head, int64_t position) const {
        const int64_t column = position / block_tokens, offset = position % block_tokens;
        const int64_t block = table[sequence * per_sequence + head * per_head + column];
        const int64_t place = from_right[sequence] ? block_tokens - 1 - offset : offset;
        return reinterpret_cast<Element *>(pool + block * block_bytes) + place * head_dim;
    }
    template <typename Element> int64_t half() const {
        return block_bytes / 2 / int64_t(sizeof(Element));
    }
};

inline __m256 load(const float *at) { return _mm256_loadu_ps(at); }
inline __m256 load(const uint16_t *at) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i *>(at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
inline float wide(float value) { return value; }
inline float wide(uint16_t value) {
    const uint32_t bits = uint32_t(value) << 16;
    float found;
    std::memcpy(&found, &bits, 4);
    return found;
}
inline void narrow(float value, float *at) { *at = value; }
inline void narrow(float value, uint16_t *at) { // to the nearest, of two the even one
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    *at = std::isnan(value) ? 0x7fc0 : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float sum_of(__m256 lanes) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}

// scores[each * stride] of one key, for `Q` queries of `head_dim` elements.
template <int Q, typename Element>
inline void scores_of(const float *queries, const Element *key, int64_t head_dim, float *scores,
                      int64_t stride) {
    __m256 sums[Q];
    for (int each = 0; each < Q; ++each)
        sums[each] = _mm256_setzero_ps();
    int64_t place = 0;
    for (; place + LANES <= head_dim; place += LANES) {
        const __m256 elements = load(key + place);
        for (int each = 0; each < Q; ++each)
            sums[each] = _mm256_fmadd_ps(load(queries + each * head_dim + place), elements,
                                         sums[each]);
    }
    for (int each = 0; each < Q; ++each) {
        float sum = sum_of(sums[each]);
        for (int64_t rest = place; rest < head_dim; ++rest)
            sum += queries[each * head_dim + rest] * wide(key[rest]);
        scores[each * stride] = sum;
    }
}

// Add the values of `count` neighbouring tokens, weighted, to outputs [Q, head_dim].
// weights: of query q and token t at q * stride + t * step.
template <int Q, typename Element>
inline void add_values(const Element *values, int64_t count, int64_t head_dim,
                       const float *weights, int64_t stride, int64_t step, float *outputs) {
    constexpr int WIDE = 2; // registers of a query
    int64_t place = 0;
    for (; place + WIDE * LANES <= head_dim; place += WIDE * LANES) {
        __m256 sums[Q][WIDE];
        for (int each = 0; each < Q; ++each)
            for (int part = 0; part < WIDE; ++part)
                sums[each][part] = load(outputs + each * head_dim + place + part * LANES);
        for (int64_t token = 0; token < count; ++token) {
            __m256 elements[WIDE];
            for (int part = 0; part < WIDE; ++part)
                elements[part] = load(values + token * head_dim + place + part * LANES);
            for (int each = 0; each < Q; ++each) {
                const __m256 weight = _mm256_broadcast_ss(weights + each * stride + token * step);
                for (int part = 0; part < WIDE; ++part)
                    sums[each][part] = _mm256_fmadd_ps(weight, elements[part], sums[each][part]);
            }
        }
        for (int each = 0; each < Q; ++each)
            for (int part = 0; part < WIDE; ++part)
                _mm256_storeu_ps(outputs + each * head_dim + place + part * LANES,
                                 sums[each][part]);
    }
    for (; place < head_dim; ++place)
        for (int each = 0; each < Q; ++each) {
            float sum = outputs[each * head_dim + place];
            for (int64_t token = 0; token < count; ++token)
                sum += weights[each * stride + token * step] * wide(values[token * head_dim + place]);
            outputs[each * head_dim + place] = sum;
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
    const int64_t tokens = end - begin, size = layer.block_tokens;
    for (int64_t position = begin; position < end; ++position)
        scores_of<Q>(queries, layer.key<Element>(sequence, head, position), layer.head_dim,
                     scores + position - begin, tokens);
    for (int each = 0; each < Q; ++each) {
        const float found = softmax(scores + each * tokens, tokens, scale, soft_cap);
        if (log_sums)
            log_sums[each] = found;
    }
    std::fill_n(outputs, Q * layer.head_dim, 0.0f);
    for (int64_t position = begin; position < end;) {
        const int64_t until = std::min(end, (position / size + 1) * size);
        // The block's tokens in the order of memory, whichever side they were written from.
        const bool is_right = layer.from_right[sequence];
        const int64_t first = is_right ? until - 1 : position;
        const Element *values =
            layer.key<Element>(sequence, head, first) + layer.half<Element>();
        add_values<Q>(values, until - position, layer.head_dim, scores + first - begin, tokens,
                      is_right ? -1 : 1, outputs);
        position = until;
    }
}

template <typename Element>
void attend_row(const Layer &layer, int64_t sequence, int64_t head, int64_t begin, int64_t end,
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

template <typename Element>
void write(const Layer &layer, int64_t tokens, int64_t kv_heads, const int64_t *sequences,
           const int64_t *positions, const Element *keys, int64_t key_stride,
           const Element *values, int64_t value_stride) {
    const size_t num_bytes = size_t(layer.head_dim) * sizeof(Element);
    for (int64_t token = 0; token < tokens; ++token)
        for (int64_t head = 0; head < kv_heads; ++head) {
            Element *place = layer.key<Element>(sequences[token], head, positions[token]);
            std::memcpy(place, keys + token * key_stride + head * layer.head_dim, num_bytes);
            std::memcpy(place + layer.half<Element>(),
                        values + token * value_stride + head * layer.head_dim, num_bytes);
        }
}

} // namespace

// Turn neighbouring pairs of elements of [tokens, heads, head_dim] (`stride` apart) in place, by
// complex numbers [tokens, head_dim / 2].
extern "C" void mux_turn(float *elements, int64_t tokens, int64_t stride, int64_t heads,
                         int64_t head_dim, const float *turns) {
    for (int64_t token = 0; token < tokens; ++token, turns += head_dim)
        for (int64_t head = 0; head < heads; ++head) {
            float *pair = elements + token * stride + head * head_dim;
            for (int64_t place = 0; place < head_dim; place += 2) {
                const float first = pair[place], second = pair[place + 1];
                const float cosine = turns[place], sine = turns[place + 1];
                pair[place] = first * cosine - second * sine;
                pair[place + 1] = first * sine + second * cosine;
            }
        }
}

// Write keys and values [tokens, kv_heads, head_dim] (`*_stride` elements from token to token).
extern "C" void mux_kv_write(int is_bf16, uint8_t *pool, int64_t block_bytes, int64_t block_tokens,
                             int64_t head_dim, const int32_t *table, int64_t per_sequence,
                             int64_t per_head, const bool *from_right, int64_t tokens,
                             int64_t kv_heads, const int64_t *sequences, const int64_t *positions,
                             const void *keys, int64_t key_stride, const void *values,
                             int64_t value_stride) {
    const Layer layer = {pool,  block_bytes,  block_tokens, head_dim,
                         table, per_sequence, per_head,     from_right};
    if (is_bf16)
        write(layer, tokens, kv_heads, sequences, positions, static_cast<const uint16_t *>(keys),
              key_stride, static_cast<const uint16_t *>(values), value_stride);
    else
        write(layer, tokens, kv_heads, sequences, positions, static_cast<const float *>(keys),
              key_stride, static_cast<const float *>(values), value_stride);
}

// outputs [rows, kv_heads, group, head_dim] of queries like it, both fp32, each row over positions
// `begins` to `ends` of its sequence. log_sums: [rows, kv_heads, group], or none.
extern "C" void mux_decode(int is_bf16, const uint8_t *pool, int64_t block_bytes,
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
    const int threads = work < THREAD_WORK ? 1 : num_threads;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        static thread_local std::vector<float> scores;
#pragma omp for schedule(dynamic, 1)
        for (int64_t place = 0; place < rows * kv_heads; ++place) {
            const int64_t row = place / kv_heads, head = place % kv_heads;
            const int64_t at = place * group;
            const auto run = is_bf16 ? attend_row<uint16_t> : attend_row<float>;
            run(layer, sequences[row], head, begins[row], ends[row], group, scale, soft_cap,
                queries + at * head_dim, scores, outputs + at * head_dim,
                log_sums ? log_sums + at : nullptr);
        }
    }
}
