#include "pool.h"

#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <new>
#include <thread>
#include <vector>

namespace llmrun {
namespace {

// About 100 us of waiting before a thread gives its core away; less when there are more threads than cores.
constexpr int SPINS = 3000;
constexpr int CROWDED_SPINS = 30;

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// The state of a phase in one word, so that a thread which was away can never take work of another phase:
// generation : 24 | pieces : 20 | pieces handed out : 20. No pieces: idle.
constexpr int PIECE_BITS = 20;
constexpr uint64_t PIECE_MASK = (uint64_t(1) << PIECE_BITS) - 1;

uint64_t generation_of(uint64_t word) { return word >> (2 * PIECE_BITS); }
uint64_t pieces_of(uint64_t word) { return (word >> PIECE_BITS) & PIECE_MASK; }

}  // namespace

// The threads and what they share. A phase ends when its last piece is done, not when all threads have arrived: a
// thread that the system has put aside between two pieces holds nobody up. Whoever finishes the last piece runs the
// serial phases that follow and opens the next one.
class Crew {
 public:
  explicit Crew(int threads) : owner_(getpid()), spins_(spins_for(threads)), scratch_(static_cast<size_t>(threads)) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  }

  ~Crew() {
    stop_.store(true);
    open(0);
    for (std::thread& worker : workers_) worker.join();
    for (Scratch& scratch : scratch_) free(scratch.data);
  }

  bool of_this_process() const { return owner_ == getpid(); }

  int32_t run(Program* program) {
    if (!reserve(program->scratch_bytes())) return LLMRUN_NO_MEMORY;
    program->status = LLMRUN_OK;
    program_ = program;
    next_ = 0;
    advance(0);
    work(0);
    return __atomic_load_n(&program->status, __ATOMIC_RELAXED);
  }

 private:
  struct Scratch {
    uint8_t* data = nullptr;
    size_t bytes = 0;
  };

  static int spins_for(int threads) {
    const unsigned cores = std::thread::hardware_concurrency();
    return cores && static_cast<unsigned>(threads) > cores ? CROWDED_SPINS : SPINS;
  }

  bool reserve(size_t bytes) {
    for (Scratch& scratch : scratch_) {
      if (scratch.bytes >= bytes) continue;
      free(scratch.data);
      const size_t rounded = (bytes + 4095) / 4096 * 4096;
      scratch.data = static_cast<uint8_t*>(aligned_alloc(64, rounded));
      scratch.bytes = scratch.data ? rounded : 0;
      if (!scratch.data) return false;
    }
    return true;
  }

  void work(int id) {
    for (;;) {
      const uint64_t word = state_.fetch_add(1, std::memory_order_acq_rel);
      const uint64_t piece = word & PIECE_MASK, pieces = pieces_of(word);
      if (piece < pieces) {
        run_piece(id, static_cast<int64_t>(piece));
        if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == pieces) advance(id);
        continue;
      }
      if (pieces == 0 && (id == 0 || stop_.load())) return;
      wait_beyond(generation_of(word));
    }
  }

  void run_piece(int id, int64_t piece) {
    const Phase& phase = *phase_;
    const int64_t begin = piece * phase.chunk;
    const int64_t end = begin + phase.chunk < phase.units ? begin + phase.chunk : phase.units;
    phase.run(program_->job(phase, begin, end, scratch_[static_cast<size_t>(id)].data));
  }

  // Runs serial phases and opens the next shared one, or ends the program.
  void advance(int id) {
    std::vector<Phase>& phases = program_->phases();
    while (next_ < phases.size()) {
      Phase& phase = phases[next_++];
      program_->prepare(&phase);
      if (phase.units == 0) continue;
      int64_t pieces = (phase.units + phase.chunk - 1) / phase.chunk;
      if (pieces > static_cast<int64_t>(PIECE_MASK) / 2) {
        phase.chunk = (phase.units + 4095) / 4096;
        pieces = (phase.units + phase.chunk - 1) / phase.chunk;
      }
      if (!phase.serial && pieces > 1) {
        phase_ = &phase;
        return open(static_cast<uint64_t>(pieces));
      }
      phase.run(program_->job(phase, 0, phase.units, scratch_[static_cast<size_t>(id)].data));
    }
    open(0);
  }

  void open(uint64_t pieces) {
    done_.store(0, std::memory_order_relaxed);
    const uint64_t generation = generation_of(state_.load(std::memory_order_relaxed)) + 1;
    state_.store((generation << (2 * PIECE_BITS)) | (pieces << PIECE_BITS), std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
    std::lock_guard<std::mutex> lock(mutex_);
    changed_.notify_all();
  }

  void wait_beyond(uint64_t generation) {
    for (int spin = 0; spin < spins_; ++spin) {
      if (generation_of(state_.load(std::memory_order_acquire)) != generation) return;
      relax();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    changed_.wait(lock, [&] { return generation_of(state_.load(std::memory_order_seq_cst)) != generation; });
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

  const pid_t owner_;
  const int spins_;
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<uint64_t> done_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  Program* program_ = nullptr;
  Phase* phase_ = nullptr;
  size_t next_ = 0;
  std::vector<Scratch> scratch_;
  std::vector<std::thread> workers_;
};

Pool::Pool(int threads, const KernelTable& table) : threads_(threads), table_(table), crew_(new Crew(threads)) {}

Pool::~Pool() {
  if (!crew_->of_this_process()) crew_.release();  // a child has the memory of the threads but not the threads
}

int32_t Pool::run(Program* program) {
  std::lock_guard<std::mutex> lock(running_);
  if (!crew_->of_this_process()) {
    crew_.release();
    crew_.reset(new Crew(threads_));
  }
  return crew_->run(program);
}

}  // namespace llmrun
