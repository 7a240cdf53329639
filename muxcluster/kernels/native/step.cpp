// A step of a decoder of Llama's kind, from tokens to logits, in one call.
//
// Threads start once a step and wait for each other some ten times a layer; between two products
// there is neither Python nor memory to be allocated. Of a step of one row, that took longer than
// the products. Arithmetic is in fp32; for a model in bf16 numbers are rounded where torch's
// operators round them.

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "attention.h"
#include "elements.h"
#include "products.h"
#include "team.h"

namespace {

// These structures are those of step.py.
struct Update { // what adapters add to some outputs of a linear
    const void *down, *up; // [ranks, in], [ranks, out] in the model's type, adapter after adapter
    const int32_t *starts; // [adapters + 1], rows of an adapter
    int64_t first, num_out; // of the linear's outputs
};

struct Linear {
    const uint8_t *values;
    const float *scales, *zeros, *bias;
    const Update *updates;
    int64_t num_in, num_out, group, kind, rounds, num_updates;

    mux::Product product() const {
        return {int(kind), {values, scales, zeros, num_in, num_out, group}, bias};
    }
};

struct Norm {
    const float *weight; // none: there is no norm
    double eps;
};

struct DecoderLayer {
    Linear qkv, output, gate_up, down;
    Norm attention, mlp, query, key;
    double scale, soft_cap; // 0: no cap
    int64_t window, number; // window 0: none; number: of the layer in the tables
};

struct Decoder {
    const DecoderLayer *layers;
    const void *embeddings; // [vocab, hidden], fp32 or bf16
    const float *turns;     // complex numbers [positions, head_dim / 2]
    Norm norm;
    Linear head;
    int64_t num_layers, vocab, num_positions, hidden, heads, kv_heads, head_dim, is_bf16;
    int64_t num_adapters;
};

struct Rows {
    const int64_t *tokens, *sequences, *positions; // [count]
    const int64_t *wanted;                         // [num_wanted], whose logits are asked for
    const int32_t *adapters; // [count], below 0: none; no pointer: no row has one
    int64_t count, num_wanted;
};

struct Pool {
    uint8_t *blocks;
    const int32_t *tables; // [sequences, layers, kv_heads, columns]
    const bool *from_right;
    int64_t block_bytes, block_tokens, num_sequences, columns;
    int64_t per_sequence, per_layer, per_head; // strides of `tables`
    int64_t stored;                            // `Stored` of attention.h
};

// What a step works with; of the calling thread, which keeps it from step to step.
struct Memory {
    std::vector<float> hidden, qkv, attended, gate_up, last;
    mux::Scratch scratch;

    void fit(const Decoder &decoder, const Rows &rows) {
        int64_t widest_qkv = 0, widest_mlp = 0, widest_attended = 0;
        for (int64_t number = 0; number < decoder.num_layers; ++number) {
            const DecoderLayer &layer = decoder.layers[number];
            widest_qkv = std::max(widest_qkv, layer.qkv.num_out);
            widest_mlp = std::max(widest_mlp, layer.gate_up.num_out);
            widest_attended = std::max(widest_attended, layer.output.num_in);
            for (const Linear *each : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down})
                scratch.fit(each->product(), rows.count);
        }
        scratch.fit(decoder.head.product(), rows.num_wanted);
        hidden.resize(size_t(rows.count * decoder.hidden));
        qkv.resize(size_t(rows.count * widest_qkv));
        attended.resize(size_t(rows.count * widest_attended));
        gate_up.resize(size_t(rows.count * widest_mlp));
        last.resize(size_t(rows.num_wanted * decoder.hidden));
    }

    void trim() {
        for (std::vector<float> *each : {&hidden, &qkv, &attended, &gate_up, &last})
            mux::trim(*each);
        scratch.trim();
    }
};

// Multiplications between two places where threads wait for each other, on average.
int64_t work_of_a_part(const Decoder &decoder, const Rows &rows) {
    int64_t keys = 0;
    for (int64_t row = 0; row < rows.count; ++row)
        keys += rows.positions[row] + 1;
    int64_t work = decoder.num_layers * keys * decoder.heads * decoder.head_dim;
    const auto add = [&](const Linear &linear, int64_t count) {
        work += count * linear.num_in * linear.num_out;
    };
    for (int64_t number = 0; number < decoder.num_layers; ++number) {
        const DecoderLayer &layer = decoder.layers[number];
        for (const Linear *each : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down})
            add(*each, rows.count);
    }
    add(decoder.head, rows.num_wanted);
    return work / (5 * decoder.num_layers + 1);
}

// Whether all numbers are inside the tensors that they index.
bool is_inside(const Decoder &decoder, const Rows &rows, const Pool &pool) {
    for (int64_t row = 0; row < rows.count; ++row) {
        const int64_t position = rows.positions[row];
        if (rows.tokens[row] < 0 || rows.tokens[row] >= decoder.vocab)
            return false;
        if (rows.sequences[row] < 0 || rows.sequences[row] >= pool.num_sequences)
            return false;
        if (position < 0 || position >= decoder.num_positions ||
            position / pool.block_tokens >= pool.columns)
            return false;
        if (rows.adapters && rows.adapters[row] >= decoder.num_adapters)
            return false;
    }
    for (int64_t place = 0; place < rows.num_wanted; ++place)
        if (rows.wanted[place] < 0 || rows.wanted[place] >= rows.count)
            return false;
    return true;
}

void embed(const Decoder &decoder, int64_t token, float *found) {
    const int64_t first = token * decoder.hidden;
    if (!decoder.is_bf16) {
        std::memcpy(found, static_cast<const float *>(decoder.embeddings) + first,
                    size_t(decoder.hidden) * sizeof(float));
        return;
    }
    const uint16_t *halves = static_cast<const uint16_t *>(decoder.embeddings) + first;
    for (int64_t place = 0; place < decoder.hidden; ++place)
        found[place] = mux::wide(halves[place]);
}

// Norm, where there is one, and turn a head.
void ready_head(const Decoder &decoder, const Norm &norm, const float *turns, float *head) {
    const bool is_bf16 = decoder.is_bf16 != 0;
    if (norm.weight)
        mux::norm_row(head, decoder.head_dim, norm.weight, float(norm.eps), is_bf16, head);
    mux::turn_head(head, decoder.head_dim, turns);
    if (is_bf16)
        mux::round_all(head, decoder.head_dim);
}

// Make the heads of one row ready, and write its keys and values.
void ready_row(const Decoder &decoder, const DecoderLayer &layer, int stored,
               const mux::Layer &where, int64_t sequence, int64_t position, float *row) {
    const int64_t size = decoder.head_dim;
    const float *turns = decoder.turns + position * size;
    float *keys = row + decoder.heads * size, *values = keys + decoder.kv_heads * size;
    for (int64_t head = 0; head < decoder.heads; ++head)
        ready_head(decoder, layer.query, turns, row + head * size);
    for (int64_t head = 0; head < decoder.kv_heads; ++head) {
        ready_head(decoder, layer.key, turns, keys + head * size);
        mux::write_head(stored, where, sequence, head, position, keys + head * size,
                        values + head * size);
    }
}

// Add to a row's outputs what its adapter makes of its prepared inputs, as low_rank_update.py.
template <typename Element>
void update_row(const Linear &linear, int64_t adapter, const float *inputs, float *outputs) {
    constexpr bool is_bf16 = std::is_same_v<Element, uint16_t>;
    for (int64_t number = 0; number < linear.num_updates; ++number) {
        const Update &update = linear.updates[number];
        const int64_t begin = update.starts[adapter], end = update.starts[adapter + 1];
        float *found = outputs + update.first;
        for (int64_t rank = begin; rank < end; ++rank) {
            const Element *down = static_cast<const Element *>(update.down) + rank * linear.num_in;
            const Element *up = static_cast<const Element *>(update.up) + rank * update.num_out;
            float low = 0.0f;
#pragma omp simd reduction(+ : low)
            for (int64_t input = 0; input < linear.num_in; ++input)
                low += inputs[input] * mux::wide(down[input]);
            if (is_bf16)
                low = mux::rounded(low);
#pragma omp simd
            for (int64_t output = 0; output < update.num_out; ++output)
                found[output] += low * mux::wide(up[output]);
        }
        if (is_bf16 && begin < end)
            mux::round_all(found, update.num_out);
    }
}

// The rows of a product's outputs that have adapters, by all threads of a team.
void update_rows(const Linear &linear, const Rows &rows, const float *inputs,
                 const mux::Preparation &preparation, float *outputs) {
    const int64_t num_in = linear.num_in, step = preparation.is_gated ? 2 * num_in : num_in;
    static thread_local std::vector<float> prepared;
    prepared.resize(size_t(num_in));
#pragma omp for schedule(dynamic, 1)
    for (int64_t row = 0; row < rows.count; ++row) {
        const int64_t adapter = rows.adapters[row];
        if (adapter < 0)
            continue;
        const float *ready = inputs + row * step;
        if (!preparation.is_none()) {
            mux::prepare(preparation, ready, num_in, prepared.data());
            ready = prepared.data();
        }
        float *found = outputs + row * linear.num_out;
        if (preparation.is_bf16)
            update_row<uint16_t>(linear, adapter, ready, found);
        else
            update_row<float>(linear, adapter, ready, found);
    }
}

// A step by all threads of a team.
void run(const Decoder &decoder, const Rows &rows, const Pool &pool, Memory &memory,
         float *logits) {
    const bool is_bf16 = decoder.is_bf16 != 0;
    const int64_t size = decoder.head_dim, group = decoder.heads / decoder.kv_heads;
    float *hidden = memory.hidden.data(), *qkv = memory.qkv.data();
    float *attended = memory.attended.data(), *gate_up = memory.gate_up.data();
    static thread_local std::vector<float> scores;
    const auto multiply = [&](const Linear &linear, const float *inputs, int64_t count,
                              const Norm *norm, bool is_gated, const float *added,
                              float *outputs) {
        mux::Preparation preparation = {norm ? norm->weight : nullptr,
                                        norm ? float(norm->eps) : 0.0f, is_gated,
                                        linear.rounds != 0, is_bf16};
        mux::product_by_team(linear.product(), inputs, count, preparation, added, outputs,
                             memory.scratch);
        if (!rows.adapters || !linear.num_updates)
            return;
        preparation.rounds = false;
        update_rows(linear, rows, inputs, preparation, outputs);
    };
#pragma omp for
    for (int64_t row = 0; row < rows.count; ++row)
        embed(decoder, rows.tokens[row], hidden + row * decoder.hidden);
    for (int64_t number = 0; number < decoder.num_layers; ++number) {
        const DecoderLayer &layer = decoder.layers[number];
        const mux::Layer where = {pool.blocks,       pool.block_bytes,
                                  pool.block_tokens, size,
                                  pool.tables + layer.number * pool.per_layer,
                                  pool.per_sequence, pool.per_head,
                                  pool.from_right};
        const int64_t width = layer.qkv.num_out;
        multiply(layer.qkv, hidden, rows.count, &layer.attention, false, nullptr, qkv);
#pragma omp for
        for (int64_t row = 0; row < rows.count; ++row)
            ready_row(decoder, layer, int(pool.stored), where, rows.sequences[row],
                      rows.positions[row], qkv + row * width);
#pragma omp for schedule(dynamic, 1)
        for (int64_t place = 0; place < rows.count * decoder.kv_heads; ++place) {
            const int64_t row = place / decoder.kv_heads, head = place % decoder.kv_heads;
            const int64_t end = rows.positions[row] + 1;
            const int64_t begin = layer.window ? std::max<int64_t>(0, end - layer.window) : 0;
            float *found = attended + (row * decoder.heads + head * group) * size;
            mux::attend_row(int(pool.stored), where, rows.sequences[row], head, begin, end, group,
                            float(layer.scale), float(layer.soft_cap),
                            qkv + row * width + head * group * size, scores, found, nullptr);
            if (is_bf16)
                mux::round_all(found, group * size);
        }
        multiply(layer.output, attended, rows.count, nullptr, false, hidden, hidden);
        multiply(layer.gate_up, hidden, rows.count, &layer.mlp, false, nullptr, gate_up);
        multiply(layer.down, gate_up, rows.count, nullptr, true, hidden, hidden);
    }
    float *last = memory.last.data();
#pragma omp for
    for (int64_t place = 0; place < rows.num_wanted; ++place)
        std::copy_n(hidden + rows.wanted[place] * decoder.hidden, decoder.hidden,
                    last + place * decoder.hidden);
    multiply(decoder.head, last, rows.num_wanted, &decoder.norm, false, nullptr, logits);
}

} // namespace

// logits [num_wanted, outputs of the head] of new tokens, a row each: the keys and values of all are
// written before any is attended over. Returns 0, or 1 and does nothing
// where a token, sequence or position is outside of its tensor.
extern "C" int mux_decoder_step(const Decoder *decoder, const Rows *rows, const Pool *pool,
                               float *logits, int num_threads) {
    if (!is_inside(*decoder, *rows, *pool))
        return 1;
    static thread_local Memory kept;
    Memory &memory = kept;
    memory.fit(*decoder, *rows);
    // One or all: OpenMP's runtime ends the threads that a smaller number leaves over.
    const int threads = work_of_a_part(*decoder, *rows) < mux::THREAD_WORK ? 1 : num_threads;
#pragma omp parallel num_threads(threads) if (threads > 1)
    run(*decoder, *rows, *pool, memory, logits);
    memory.trim();
    return 0;
}
