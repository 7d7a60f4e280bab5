/* A stand-in for libnvidia-ml.so.1 in C: what calls cost is then ctypes and the caller, not a simulator in Python.
 *
 * world.c knows the time, what GPUs do in it, and the faults; the other files are NVML's functions.
 *
 * `constants.h` is written by build.py from the nvidia-ml-py that is installed, so that no number is repeated here.
 * Every value is a function of the time and the GPU's index alone: any process sees the same node. A GPU works in a
 * square wave: `period` seconds, of which it is busy for the first `share`; GPU k of n is behind by k/n of a period.
 *
 * The environment, read when the library is loaded:
 *   NVML_STUB_GPUS      how many GPUs there are (8)
 *   NVML_STUB_GPM       1 if they have GPM (0)
 *   NVML_STUB_PERIOD_S  of the wave (2)
 *   NVML_STUB_BUSY      busy share of the wave (0.5)
 *   NVML_STUB_TIMES     1 if calls take the processor as long as an H100's driver does (0); tests/data/hardware/h100
 *   NVML_STUB_CONTROL   a file of faults, read anew when it was changed or replaced; one a line, `*` for any GPU or function:
 *                         lost GPU            every call on it fails with GPU_IS_LOST
 *                         error GPU FUNCTION CODE
 *                         hang GPU FUNCTION SECONDS     every call sleeps in C; ends early if the line goes
 *                         stuck GPU FUNCTION SECONDS    the same, but the line's end does not end it
 *                         crash GPU FUNCTION  the process that calls it gets SIGSEGV
 *                         xid GPU CODE TIMES  that many events (1) for whoever watches
 *                         gone GPU            it was taken out: those after it move up by an index
 *                         late GPU            the same; once the line is gone, only an NVML that is started then lists it
 *                         mig GPU SLICES      it is cut into so many instances
 *                         version NUMBER      of the kernel's driver (0): a process whose library was loaded under another
 *                                             one has NVML stopped under it, and cannot start it again
 *                         value GPU FIELD NUMBER        a field's value, by the field's number
 *                         field GPU FIELD CODE          a field's own return code
 *                         stamp GPU FUNCTION SECONDS    time stamps are this far from the time; 0: they are 0
 *                         epoch GPU * SECONDS           counters count from this moment (since 1970) on
 * A hang of some microseconds is a latency. Functions have the names that the library exports.
 */
#ifndef STUB_H
#define STUB_H
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include "constants.h"

typedef int nvml_return;
typedef unsigned long long ull;

enum { MOST_GPUS = 64, MOST_FAULTS = 64, MOST_FUNCTIONS = 128, MOST_SLICES = 7, BUFFERED = 100, NVLINKS = 18, C2C_LINKS = 10 };

#define SECOND 1000000000LL
#define STEP (SECOND / 6)        /* utilisation: its window, and how often it is renewed */
#define POWER_STEP (SECOND / 10) /* power and energy */
#define POWER_WINDOW (SECOND / 40)
#define GPM_STEP (SECOND / 10)
#define LOADED (1767225600LL * SECOND) /* 2026-01-01: counters begin there */
#define MEMORY (80ULL << 30)
#define RESERVED (600ULL << 20)
#define IDLE_MW 70000LL
#define BUSY_MW 500000LL

/* `slice`: of a MIG instance, its number from 1 on. */
struct gpu { int index, slice; };
struct fault { char kind[8]; int gpu; char function[64]; double number; int times; };

extern struct gpu gpus[MOST_GPUS], slices[MOST_GPUS * MOST_SLICES];
extern int count, has_gpm, started;
extern struct fault *faults;
extern int fault_count, generation;

int64_t now_ns(void);
void takes_us(double us);
int64_t floor_to(int64_t t, int64_t step);
int64_t busy_until(const struct gpu *gpu, int64_t t);
double busy_share(const struct gpu *gpu, int64_t a, int64_t b);
unsigned utilization_at(const struct gpu *gpu, int64_t step_end);
ull energy_mj(const struct gpu *gpu, int64_t t);
unsigned power_mw(const struct gpu *gpu, int64_t t, int64_t window);
ull memory_used(const struct gpu *gpu);

const struct fault *met(const char *kind, int gpu, const char *function);
const struct fault *met_field(const char *kind, int gpu, unsigned field);
int64_t epoch(const struct gpu *gpu);
int64_t stamp_us(const struct gpu *gpu, const char *function, int64_t at_us);
int gone(int gpu);
void list_gpus(void);
int present(void);
const struct gpu *at(unsigned index);
int index_of(const struct gpu *gpu);
void sleep_ns(int64_t ns);
void hang(int gpu, const char *function);
nvml_return enter(const char *function, int *slot, const void *handle, int needs_handle);

#define BEGIN(handle, needs)                                                   \
    static int slot;                                                           \
    nvml_return code = enter(__func__, &slot, handle, needs);                  \
    if (code) return code

#define DEVICE(name, ...)                                                      \
    nvml_return name(const struct gpu *gpu, ##__VA_ARGS__)

#define NUMBER(name, value)                                                    \
    DEVICE(name, unsigned *out) {                                              \
        BEGIN(gpu, 1);                                                         \
        *out = (unsigned)(value);                                              \
        return NVML_SUCCESS;                                                   \
    }

#endif
