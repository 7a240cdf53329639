// When a team of OpenMP's threads pays, and what its threads keep.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mux {

constexpr int64_t THREAD_WORK = 1 << 17; // multiplications that are worth other threads

// Let go of scratch memory between calls, if it is much.
template <typename Number> void trim(std::vector<Number> &scratch) {
    constexpr size_t most = 4 << 20; // numbers
    if (scratch.capacity() > most)
        std::vector<Number>().swap(scratch);
}

} // namespace mux
