/* A stand-in for libnvidia-ml.so.1 in C: what calls cost is then ctypes and the caller, not a simulator in Python.
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
 *   NVML_STUB_CONTROL   a file of faults, read anew when it was changed or replaced; one a line, `*` for any GPU or function:
 *                         lost GPU            every call on it fails with GPU_IS_LOST
 *                         error GPU FUNCTION CODE
 *                         hang GPU FUNCTION SECONDS     every call sleeps in C; ends early if the line goes
 *                         xid GPU CODE        one event for whoever watches
 * A hang of some microseconds is a latency. Functions have the names that the library exports.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include "constants.h"

typedef int nvml_return;
typedef unsigned long long ull;

enum { MOST_GPUS = 64, MOST_FAULTS = 64, MOST_FUNCTIONS = 128, BUFFERED = 100 };

#define SECOND 1000000000LL
static const int64_t STEP = SECOND / 6;        /* utilisation: its window, and how often it is renewed */
static const int64_t POWER_STEP = SECOND / 10; /* power and energy */
static const int64_t POWER_WINDOW = SECOND / 40;
static const int64_t GPM_STEP = SECOND / 10;
static const int64_t LOADED = 1767225600LL * SECOND; /* 2026-01-01: counters begin there */
static const ull MEMORY = 80ULL << 30, RESERVED = 600ULL << 20;
static const int64_t IDLE_MW = 70000, BUSY_MW = 500000;

struct gpu { int index; };
struct gpm { const struct gpu *gpu; int64_t at; };
struct set { uint64_t watched; int generation, next; };
struct fault { char kind[8]; int gpu; char function[64]; double number; };

static struct gpu gpus[MOST_GPUS];
static int count = 8, has_gpm, started;
static int64_t period = 2 * SECOND, busy_part = SECOND, fixed_now;
static const char *control;
static struct stat control_seen;
static struct fault faults[MOST_FAULTS];
static int fault_count, generation;
static struct { const char *name; ull calls; } functions[MOST_FUNCTIONS];

/* ------------------------------------------------------------------ time, and what a GPU does in it */

static int64_t now_ns(void) {
    if (fixed_now) return fixed_now;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

static int64_t floor_to(int64_t t, int64_t step) { return t - (t % step + step) % step; }

/* ns for which the GPU was busy from LOADED until t */
static int64_t busy_until(const struct gpu *gpu, int64_t t) {
    int64_t shift = (int64_t)gpu->index * period / count, at = t - LOADED + period - shift;
    int64_t waves = at / period, rest = at % period;
    int64_t before = period - shift < busy_part ? period - shift : busy_part;
    return waves * busy_part + (rest < busy_part ? rest : busy_part) - before;
}

static double busy_share(const struct gpu *gpu, int64_t a, int64_t b) {
    return b > a ? (double)(busy_until(gpu, b) - busy_until(gpu, a)) / (double)(b - a) : 0;
}

static unsigned utilization_at(const struct gpu *gpu, int64_t step_end) {
    return (unsigned)(100 * busy_share(gpu, step_end - STEP, step_end) + 0.5);
}

static ull energy_mj(const struct gpu *gpu, int64_t t) {
    __int128 t0 = floor_to(t, POWER_STEP);
    __int128 mw_ns = (t0 - LOADED) * IDLE_MW + (__int128)busy_until(gpu, (int64_t)t0) * (BUSY_MW - IDLE_MW);
    return (ull)(mw_ns / SECOND);
}

static unsigned power_mw(const struct gpu *gpu, int64_t t, int64_t window) {
    int64_t end = floor_to(t, POWER_STEP);
    return (unsigned)(IDLE_MW + (BUSY_MW - IDLE_MW) * busy_share(gpu, end - window, end) + 0.5);
}

/* ------------------------------------------------------------------ faults, and what every call does first */

static void read_control(void) {
    struct stat found;
    if (stat(control, &found)) {
        fault_count = 0;
        memset(&control_seen, 0, sizeof control_seen);
        return;
    }
    if (!memcmp(&found.st_mtim, &control_seen.st_mtim, sizeof found.st_mtim) && found.st_ino == control_seen.st_ino &&
        found.st_size == control_seen.st_size)
        return;
    FILE *file = fopen(control, "r");
    if (!file) return;
    char line[256], gpu[16];
    int n = 0;
    while (n < MOST_FAULTS && fgets(line, sizeof line, file)) {
        struct fault *f = &faults[n];
        memset(f, 0, sizeof *f);
        f->function[0] = '*';
        if (line[0] == '#' || sscanf(line, "%7s %15s", f->kind, gpu) < 2) continue;
        f->gpu = gpu[0] == '*' ? -1 : atoi(gpu);
        if (!strcmp(f->kind, "xid"))
            sscanf(line, "%*s %*s %lf", &f->number);
        else
            sscanf(line, "%*s %*s %63s %lf", f->function, &f->number);
        n++;
    }
    fclose(file);
    fault_count = n;
    generation++;
    control_seen = found;
}

static const struct fault *met(const char *kind, int gpu, const char *function) {
    for (int i = 0; i < fault_count; i++) {
        const struct fault *f = &faults[i];
        if (!strcmp(f->kind, kind) && (f->gpu < 0 || f->gpu == gpu) &&
            (f->function[0] == '*' || !strcmp(f->function, function)))
            return f;
    }
    return NULL;
}

static void sleep_ns(int64_t ns) {
    struct timespec t = {ns / SECOND, ns % SECOND};
    nanosleep(&t, NULL);
}

/* The clock of hangs is never the one that a test has fixed. */
static int64_t steady_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

static void hang(int gpu, const char *function) {
    const struct fault *f = met("hang", gpu, function);
    if (!f) return;
    int64_t end = steady_ns() + (int64_t)(f->number * 1e9), left;
    while ((left = end - steady_ns()) > 0) {
        sleep_ns(left < SECOND / 50 ? left : SECOND / 50);
        if (left > SECOND / 50) read_control();
        if (!met("hang", gpu, function)) return;
    }
}

static nvml_return enter(const char *function, int *slot, const void *handle, int needs_handle) {
    if (!*slot) {
        int i = 1;
        while (i < MOST_FUNCTIONS - 1 && functions[i].name && strcmp(functions[i].name, function)) i++;
        functions[i].name = function;
        *slot = i;
    }
    functions[*slot].calls++;
    int gpu = -1;
    if (!started && strcmp(function, "nvmlInitWithFlags")) return NVML_ERROR_UNINITIALIZED;
    if (needs_handle) {
        const struct gpu *g = handle;
        if (g < gpus || g >= gpus + count) return NVML_ERROR_INVALID_ARGUMENT;
        gpu = g->index;
    }
    if (!control) return NVML_SUCCESS;
    read_control();
    if (!fault_count) return NVML_SUCCESS;
    hang(gpu, function);
    const struct fault *f;
    if (gpu >= 0 && met("lost", gpu, function)) return NVML_ERROR_GPU_IS_LOST;
    if ((f = met("error", gpu, function))) return (nvml_return)f->number;
    return NVML_SUCCESS;
}

#define BEGIN(handle, needs)                                                   \
    static int slot;                                                           \
    nvml_return code = enter(__func__, &slot, handle, needs);                  \
    if (code) return code

#define DEVICE(name, ...)                                                      \
    nvml_return name(const struct gpu *gpu, ##__VA_ARGS__)

/* ------------------------------------------------------------------ for the tests alone */

void stubSetTime(int64_t ns) { fixed_now = ns; }

/* Calls of one function since the library was loaded; of all, without a name. */
ull stubCalls(const char *name) {
    ull all = 0;
    for (int i = 1; i < MOST_FUNCTIONS; i++)
        if (functions[i].name && (!name || !strcmp(functions[i].name, name))) all += functions[i].calls;
    return all;
}

/* The name of the i-th function that was called, NULL beyond the last. */
const char *stubFunction(int i) { return i + 1 < MOST_FUNCTIONS ? functions[i + 1].name : NULL; }

int64_t stubBusyNs(int gpu, int64_t a, int64_t b) { return busy_until(&gpus[gpu], b) - busy_until(&gpus[gpu], a); }

ull stubEnergyMj(int gpu, int64_t t) { return energy_mj(&gpus[gpu], t); }

__attribute__((constructor)) static void load(void) {
    const char *value;
    if ((value = getenv("NVML_STUB_GPUS"))) count = atoi(value);
    if (count < 1 || count > MOST_GPUS) count = 8;
    if ((value = getenv("NVML_STUB_GPM"))) has_gpm = atoi(value);
    if ((value = getenv("NVML_STUB_PERIOD_S")) && atof(value) > 0) period = (int64_t)(atof(value) * 1e9);
    value = getenv("NVML_STUB_BUSY");
    busy_part = (int64_t)((double)period * (value ? atof(value) : 0.5));
    control = getenv("NVML_STUB_CONTROL");
    for (int i = 0; i < MOST_GPUS; i++) gpus[i].index = i;
}

/* ------------------------------------------------------------------ the system */

nvml_return nvmlInitWithFlags(unsigned flags) {
    BEGIN(NULL, 0);
    started++;
    return NVML_SUCCESS;
}

nvml_return nvmlShutdown(void) {
    BEGIN(NULL, 0);
    started--;
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvml_return code) { return code ? "Stub Error" : "Success"; }

nvml_return nvmlSystemGetDriverVersion(char *text, unsigned size) {
    BEGIN(NULL, 0);
    snprintf(text, size, "570.0-stub");
    return NVML_SUCCESS;
}

nvml_return nvmlSystemGetNVMLVersion(char *text, unsigned size) {
    BEGIN(NULL, 0);
    snprintf(text, size, "12.570.0-stub");
    return NVML_SUCCESS;
}

nvml_return nvmlSystemGetCudaDriverVersion_v2(int *out) {
    BEGIN(NULL, 0);
    *out = 12080;
    return NVML_SUCCESS;
}

nvml_return nvmlDeviceGetCount_v2(unsigned *out) {
    BEGIN(NULL, 0);
    *out = (unsigned)count;
    return NVML_SUCCESS;
}

static nvml_return hand_out(unsigned index, const struct gpu **out) {
    if (index >= (unsigned)count) return NVML_ERROR_INVALID_ARGUMENT;
    *out = &gpus[index];
    return NVML_SUCCESS;
}

nvml_return nvmlDeviceGetHandleByIndex_v2(unsigned index, const struct gpu **out) {
    BEGIN(NULL, 0);
    hang((int)index, __func__);
    if (met("lost", (int)index, __func__)) return NVML_ERROR_GPU_IS_LOST;
    return hand_out(index, out);
}

nvml_return nvmlDeviceGetHandleByUUID(const char *uuid, const struct gpu **out) {
    BEGIN(NULL, 0);
    unsigned index;
    if (sscanf(uuid, "GPU-57ab0000-0000-0000-0000-%12u", &index) != 1 || index >= (unsigned)count)
        return NVML_ERROR_NOT_FOUND;
    if (met("lost", (int)index, __func__)) return NVML_ERROR_GPU_IS_LOST;
    return hand_out(index, out);
}

/* ------------------------------------------------------------------ one device */

DEVICE(nvmlDeviceGetUUID, char *text, unsigned size) {
    BEGIN(gpu, 1);
    snprintf(text, size, "GPU-57ab0000-0000-0000-0000-%012d", gpu->index);
    return NVML_SUCCESS;
}

DEVICE(nvmlDeviceGetName, char *text, unsigned size) {
    BEGIN(gpu, 1);
    snprintf(text, size, "Stub GPU 80GB");
    return NVML_SUCCESS;
}

struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};

DEVICE(nvmlDeviceGetPciInfo_v3, struct pci *out) {
    BEGIN(gpu, 1);
    memset(out, 0, sizeof *out);
    out->bus = 0x10 + (unsigned)gpu->index;
    snprintf(out->legacy, sizeof out->legacy, "0000:%02X:00.0", out->bus);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
    return NVML_SUCCESS;
}

#define NUMBER(name, value)                                                    \
    DEVICE(name, unsigned *out) {                                              \
        BEGIN(gpu, 1);                                                         \
        *out = (unsigned)(value);                                              \
        return NVML_SUCCESS;                                                   \
    }

NUMBER(nvmlDeviceGetIndex, gpu->index)
NUMBER(nvmlDeviceGetMinorNumber, gpu->index)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, 5)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, 16)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, 700000)
NUMBER(nvmlDeviceGetPowerUsage, power_mw(gpu, now_ns(), SECOND))
NUMBER(nvmlDeviceGetMaxMigDeviceCount, 7)

DEVICE(nvmlDeviceGetMigMode, unsigned *current, unsigned *pending) {
    BEGIN(gpu, 1);
    *current = *pending = 0;
    return NVML_SUCCESS;
}

DEVICE(nvmlDeviceGetMigDeviceHandleByIndex, unsigned index, const struct gpu **out) {
    BEGIN(gpu, 1);
    return NVML_ERROR_NOT_FOUND;
}

DEVICE(nvmlDeviceGetUtilizationRates, unsigned *out) {
    BEGIN(gpu, 1);
    out[0] = utilization_at(gpu, floor_to(now_ns(), STEP));
    out[1] = out[0] / 2;
    return NVML_SUCCESS;
}

static nvml_return no_video(unsigned *share, unsigned *period_us) {
    *share = 0;
    *period_us = (unsigned)(STEP / 1000);
    return NVML_SUCCESS;
}

DEVICE(nvmlDeviceGetEncoderUtilization, unsigned *share, unsigned *period_us) {
    BEGIN(gpu, 1);
    return no_video(share, period_us);
}

DEVICE(nvmlDeviceGetDecoderUtilization, unsigned *share, unsigned *period_us) {
    BEGIN(gpu, 1);
    return no_video(share, period_us);
}

static ull memory_used(const struct gpu *gpu) { return (4ULL + (ull)gpu->index) << 30; }

struct memory { ull total, free, used; };

DEVICE(nvmlDeviceGetMemoryInfo, struct memory *out) {
    BEGIN(gpu, 1);
    out->total = MEMORY;
    out->used = memory_used(gpu) + RESERVED;
    out->free = MEMORY - out->used;
    return NVML_SUCCESS;
}

struct memory2 { unsigned version; ull total, reserved, free, used; };

DEVICE(nvmlDeviceGetMemoryInfo_v2, struct memory2 *out) {
    BEGIN(gpu, 1);
    if (out->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    out->total = MEMORY;
    out->reserved = RESERVED;
    out->used = memory_used(gpu);
    out->free = MEMORY - RESERVED - out->used;
    return NVML_SUCCESS;
}

DEVICE(nvmlDeviceGetTotalEnergyConsumption, ull *out) {
    BEGIN(gpu, 1);
    *out = energy_mj(gpu, now_ns());
    return NVML_SUCCESS;
}

DEVICE(nvmlDeviceGetTemperature, unsigned sensor, unsigned *out) {
    BEGIN(gpu, 1);
    if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
    *out = 40 + (unsigned)gpu->index;
    return NVML_SUCCESS;
}

DEVICE(nvmlDeviceGetClockInfo, unsigned domain, unsigned *out) {
    BEGIN(gpu, 1);
    *out = domain == NVML_CLOCK_MEM ? 2619 : 1980;
    return NVML_SUCCESS;
}

DEVICE(nvmlDeviceGetMaxClockInfo, unsigned domain, unsigned *out) {
    BEGIN(gpu, 1);
    *out = domain == NVML_CLOCK_MEM ? 2619 : 1980;
    return NVML_SUCCESS;
}

struct process { unsigned pid; ull memory; unsigned instance, compute; };

DEVICE(nvmlDeviceGetComputeRunningProcesses_v3, unsigned *n, struct process *out) {
    BEGIN(gpu, 1);
    unsigned room = *n;
    *n = 1;
    if (!room || !out) return NVML_ERROR_INSUFFICIENT_SIZE;
    out[0] = (struct process){4000 + (unsigned)gpu->index, memory_used(gpu), ~0u, ~0u};
    return NVML_SUCCESS;
}

/* ------------------------------------------------------------------ buffers and fields */

struct sample { ull at_us; ull value; };

DEVICE(nvmlDeviceGetSamples, unsigned kind, ull after_us, unsigned *type, unsigned *n, struct sample *out) {
    BEGIN(gpu, 1);
    int power = kind == NVML_TOTAL_POWER_SAMPLES;
    if (!power && kind != NVML_GPU_UTILIZATION_SAMPLES && kind != NVML_MEMORY_UTILIZATION_SAMPLES)
        return NVML_ERROR_NOT_SUPPORTED;
    int64_t step = power ? POWER_STEP : STEP, newest = floor_to(now_ns(), step);
    *type = NVML_VALUE_TYPE_UNSIGNED_INT;
    if ((ull)newest / 1000 <= after_us) return NVML_ERROR_NOT_FOUND;
    if (!out) {
        *n = BUFFERED;
        return NVML_SUCCESS;
    }
    unsigned taken = 0;
    for (int64_t at = newest - (BUFFERED - 1) * step; at <= newest && taken < *n; at += step) {
        if ((ull)at / 1000 <= after_us) continue;
        unsigned value = power ? power_mw(gpu, at, POWER_WINDOW) : utilization_at(gpu, at);
        if (kind == NVML_MEMORY_UTILIZATION_SAMPLES) value /= 2;
        out[taken].at_us = (ull)at / 1000;
        out[taken++].value = value;
    }
    *n = taken;
    return NVML_SUCCESS;
}

struct field {
    uint32_t id, scope;
    int64_t at_us, latency_us;
    unsigned type;
    nvml_return code;
    union { unsigned u; ull ull; } value;
};

static nvml_return read_field(const struct gpu *gpu, int64_t now, struct field *f) {
    ull busy = (ull)busy_until(gpu, now);
    f->type = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    switch (f->id) {
    case NVML_FI_DEV_POWER_INSTANT: f->value.ull = power_mw(gpu, now, POWER_WINDOW); break;
    case NVML_FI_DEV_POWER_AVERAGE: f->value.ull = power_mw(gpu, now, SECOND); break;
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: f->value.ull = energy_mj(gpu, now); break;
    case NVML_FI_DEV_PCIE_COUNT_RX_BYTES: f->value.ull = (busy / 1000) & 0xFFFFFFFF; break; /* 1 MB per busy ms */
    case NVML_FI_DEV_PCIE_COUNT_TX_BYTES: f->value.ull = (busy / 4000) & 0xFFFFFFFF; break;
    case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX:
    case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: f->value.ull = busy / 100; break; /* KiB */
    case NVML_FI_DEV_PERF_POLICY_POWER: f->value.ull = busy / 10; break;          /* ns */
    case NVML_FI_DEV_PERF_POLICY_SYNC_BOOST:
    case NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN:
    case NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN:
    case NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN:
    case NVML_FI_DEV_PCIE_REPLAY_COUNTER:
    case NVML_FI_DEV_ECC_SBE_VOL_TOTAL:
    case NVML_FI_DEV_ECC_DBE_VOL_TOTAL: f->value.ull = 0; break;
    case NVML_FI_DEV_MEMORY_TEMP: f->type = NVML_VALUE_TYPE_UNSIGNED_INT; f->value.u = 50; break;
    case NVML_FI_DEV_NVLINK_LINK_COUNT: f->type = NVML_VALUE_TYPE_UNSIGNED_INT; f->value.u = 18; break;
    case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: f->type = NVML_VALUE_TYPE_UNSIGNED_INT; f->value.u = 25000; break;
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}

DEVICE(nvmlDeviceGetFieldValues, int n, struct field *fields) {
    BEGIN(gpu, 1);
    int64_t now = now_ns();
    for (int i = 0; i < n; i++) {
        fields[i].at_us = now / 1000;
        fields[i].latency_us = 1;
        fields[i].code = read_field(gpu, now, &fields[i]);
    }
    return NVML_SUCCESS;
}

/* ------------------------------------------------------------------ GPM */

struct gpm_support { unsigned version, supported; };

nvml_return nvmlGpmQueryDeviceSupport(const struct gpu *gpu, struct gpm_support *out) {
    BEGIN(gpu, 1);
    out->supported = (unsigned)has_gpm;
    return NVML_SUCCESS;
}

nvml_return nvmlGpmSampleAlloc(struct gpm **out) {
    BEGIN(NULL, 0);
    *out = calloc(1, sizeof **out);
    return NVML_SUCCESS;
}

nvml_return nvmlGpmSampleFree(struct gpm *sample) {
    BEGIN(NULL, 0);
    free(sample);
    return NVML_SUCCESS;
}

nvml_return nvmlGpmSampleGet(const struct gpu *gpu, struct gpm *sample) {
    BEGIN(gpu, 1);
    if (!has_gpm) return NVML_ERROR_NOT_SUPPORTED;
    *sample = (struct gpm){gpu, floor_to(now_ns(), GPM_STEP)};
    return NVML_SUCCESS;
}

struct metric { unsigned id; nvml_return code; double value; const char *texts[3]; };
struct metrics { unsigned version, n; const struct gpm *first, *second; struct metric metrics[]; };

nvml_return nvmlGpmMetricsGet(struct metrics *request) {
    BEGIN(NULL, 0);
    const struct gpm *a = request->first, *b = request->second;
    if (request->version != 1 || !a || !b || !a->gpu || a->gpu != b->gpu) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < request->n; i++) {
        struct metric *m = &request->metrics[i];
        double part = m->id == NVML_GPM_METRIC_GRAPHICS_UTIL ? 1 : m->id == NVML_GPM_METRIC_SM_UTIL ? 0.8 : 0.25;
        m->code = b->at > a->at ? NVML_SUCCESS : NVML_ERROR_NO_DATA;
        m->value = 100 * part * busy_share(a->gpu, a->at, b->at);
    }
    return NVML_SUCCESS;
}

/* ------------------------------------------------------------------ events */

DEVICE(nvmlDeviceGetSupportedEventTypes, ull *out) {
    BEGIN(gpu, 1);
    *out = nvmlEventTypeXidCriticalError;
    return NVML_SUCCESS;
}

nvml_return nvmlEventSetCreate(struct set **out) {
    BEGIN(NULL, 0);
    *out = calloc(1, sizeof **out);
    return NVML_SUCCESS;
}

nvml_return nvmlEventSetFree(struct set *set) {
    BEGIN(NULL, 0);
    free(set);
    return NVML_SUCCESS;
}

nvml_return nvmlDeviceRegisterEvents(const struct gpu *gpu, ull types, struct set *set) {
    BEGIN(gpu, 1);
    set->watched |= 1ULL << gpu->index;
    return NVML_SUCCESS;
}

struct event { const struct gpu *gpu; ull type, data; unsigned instance, compute; };

nvml_return nvmlEventSetWait_v2(struct set *set, struct event *out, unsigned timeout_ms) {
    BEGIN(NULL, 0);
    if (set->generation != generation) {
        set->generation = generation;
        set->next = 0;
    }
    while (set->next < fault_count) {
        const struct fault *f = &faults[set->next++];
        if (!strcmp(f->kind, "xid") && f->gpu >= 0 && set->watched >> f->gpu & 1) {
            *out = (struct event){&gpus[f->gpu], nvmlEventTypeXidCriticalError, (ull)f->number, ~0u, ~0u};
            return NVML_SUCCESS;
        }
    }
    if (timeout_ms) sleep_ns((int64_t)timeout_ms * 1000000);
    return NVML_ERROR_TIMEOUT;
}
