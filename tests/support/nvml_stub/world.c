/* The time, what a GPU does in it, the faults, and what every call does first. */
#include "stub.h"

struct gpu gpus[MOST_GPUS], slices[MOST_GPUS * MOST_SLICES];
int count = 8, has_gpm, started;
/* Threads look faults up while one of them reads the control file anew: into the table that is not looked at. */
static struct fault tables[2][MOST_FAULTS];
struct fault *faults = tables[0];
int fault_count, generation;

static int64_t period = 2 * SECOND, busy_part = SECOND, fixed_now;
static int version;
static const char *control;
static struct stat control_seen;
static struct { const char *name; ull calls; } functions[MOST_FUNCTIONS];

/* ------------------------------------------------------------------ time, and what a GPU does in it */

int64_t now_ns(void) {
    if (fixed_now) return fixed_now;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

int64_t floor_to(int64_t t, int64_t step) { return t - (t % step + step) % step; }

/* ns for which the GPU was busy from LOADED until t */
int64_t busy_until(const struct gpu *gpu, int64_t t) {
    int64_t shift = (int64_t)gpu->index * period / count, at = t - LOADED + period - shift;
    int64_t waves = at / period, rest = at % period;
    int64_t before = period - shift < busy_part ? period - shift : busy_part;
    return waves * busy_part + (rest < busy_part ? rest : busy_part) - before;
}

double busy_share(const struct gpu *gpu, int64_t a, int64_t b) {
    return b > a ? (double)(busy_until(gpu, b) - busy_until(gpu, a)) / (double)(b - a) : 0;
}

unsigned utilization_at(const struct gpu *gpu, int64_t step_end) {
    return (unsigned)(100 * busy_share(gpu, step_end - STEP, step_end) + 0.5);
}

ull energy_mj(const struct gpu *gpu, int64_t t) {
    __int128 t0 = floor_to(t, POWER_STEP), since = epoch(gpu);
    __int128 busy = busy_until(gpu, (int64_t)t0) - (since == LOADED ? 0 : busy_until(gpu, (int64_t)since));
    __int128 mw_ns = (t0 - since) * IDLE_MW + busy * (BUSY_MW - IDLE_MW);
    return (ull)(mw_ns / SECOND);
}

unsigned power_mw(const struct gpu *gpu, int64_t t, int64_t window) {
    int64_t end = floor_to(t, POWER_STEP);
    return (unsigned)(IDLE_MW + (BUSY_MW - IDLE_MW) * busy_share(gpu, end - window, end) + 0.5);
}

ull memory_used(const struct gpu *gpu) { return (4ULL + (ull)gpu->index) << 30; }

/* ------------------------------------------------------------------ faults, and what every call does first */

/* Of the GPUs that were put back since NVML was started: it does not list them. */
static char missed[MOST_GPUS];

static void read_changes(void) {
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
    struct fault *fresh = tables[faults == tables[0]];
    memset(fresh, 0, sizeof tables[0]);
    while (n < MOST_FAULTS && fgets(line, sizeof line, file)) {
        struct fault *f = &fresh[n];
        memset(f, 0, sizeof *f);
        f->function[0] = '*';
        if (line[0] == '#' || sscanf(line, "%7s %15s", f->kind, gpu) < 2) continue;
        f->gpu = gpu[0] == '*' ? -1 : atoi(gpu);
        if (!strcmp(f->kind, "xid"))
            f->times = sscanf(line, "%*s %*s %lf %d", &f->number, &f->times) == 2 ? f->times : 1;
        else if (!strcmp(f->kind, "mig"))
            sscanf(line, "%*s %*s %lf", &f->number);
        else
            sscanf(line, "%*s %*s %63s %lf", f->function, &f->number);
        n++;
    }
    fclose(file);
    if (n < MOST_FAULTS) memset(&fresh[n], 0, sizeof fresh[n]);
    faults = fresh;
    fault_count = n;
    for (int i = 0; i < MOST_GPUS; i++) missed[i] |= met("late", i, "*") != NULL;
    generation++;
    control_seen = found;
}

static void read_control(void) {
    static int reading;
    while (__atomic_exchange_n(&reading, 1, __ATOMIC_ACQUIRE)) sleep_ns(SECOND / 10000);
    read_changes();
    __atomic_store_n(&reading, 0, __ATOMIC_RELEASE);
}

const struct fault *met(const char *kind, int gpu, const char *function) {
    for (int i = 0; i < fault_count; i++) {
        const struct fault *f = &faults[i];
        if (!strcmp(f->kind, kind) && (f->gpu < 0 || f->gpu == gpu) &&
            (f->function[0] == '*' || !strcmp(f->function, function)))
            return f;
    }
    return NULL;
}

const struct fault *met_field(const char *kind, int gpu, unsigned field) {
    char name[16];
    if (!fault_count) return NULL;
    snprintf(name, sizeof name, "%u", field);
    return met(kind, gpu, name);
}

int64_t epoch(const struct gpu *gpu) {
    const struct fault *f = fault_count ? met("epoch", gpu->index, "*") : NULL;
    return f ? (int64_t)(f->number * 1e9) : LOADED;
}

int64_t stamp_us(const struct gpu *gpu, const char *function, int64_t at_us) {
    const struct fault *f = fault_count ? met("stamp", gpu->index, function) : NULL;
    return !f ? at_us : f->number ? at_us + (int64_t)(f->number * 1e6) : 0;
}

/* ------------------------------------------------------------------ which GPUs are there */

int gone(int gpu) { return missed[gpu] || (fault_count && (met("gone", gpu, "*") || met("late", gpu, "*"))); }

void list_gpus(void) {
    for (int i = 0; i < MOST_GPUS; i++) missed[i] = fault_count && met("late", i, "*");
}

int index_of(const struct gpu *gpu) {
    int index = 0;
    for (int i = 0; i < gpu->index; i++) index += !gone(i);
    return index;
}

int present(void) { return index_of(&gpus[count]); }

const struct gpu *at(unsigned index) {
    for (int i = 0; i < count; i++)
        if (!gone(i) && !index--) return &gpus[i];
    return NULL;
}

static const struct fault *driver(void) {
    for (int i = 0; i < fault_count; i++)
        if (!strcmp(faults[i].kind, "version")) return &faults[i];
    return NULL;
}

void sleep_ns(int64_t ns) {
    struct timespec t = {ns / SECOND, ns % SECOND};
    nanosleep(&t, NULL);
}

/* The clock of hangs is never the one that a test has fixed. */
static int64_t steady_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

void hang(int gpu, const char *function) {
    const struct fault *f = met("stuck", gpu, function);
    if (f) sleep_ns((int64_t)(f->number * 1e9));
    if (met("crash", gpu, function)) raise(SIGSEGV);
    f = met("hang", gpu, function);
    if (!f) return;
    int64_t end = steady_ns() + (int64_t)(f->number * 1e9), left;
    while ((left = end - steady_ns()) > 0) {
        sleep_ns(left < SECOND / 50 ? left : SECOND / 50);
        if (left > SECOND / 50) read_control();
        if (!met("hang", gpu, function)) return;
    }
}

nvml_return enter(const char *function, int *slot, const void *handle, int needs_handle) {
    if (!*slot) {
        int i = 1;
        while (i < MOST_FUNCTIONS - 1 && functions[i].name && strcmp(functions[i].name, function)) i++;
        functions[i].name = function;
        *slot = i;
    }
    functions[*slot].calls++;
    int gpu = -1, starts = !strcmp(function, "nvmlInitWithFlags");
    if (control) read_control();
    int loaded = driver() ? driver()->gpu : 0;
    if (loaded != version) return starts ? NVML_ERROR_LIB_RM_VERSION_MISMATCH : NVML_ERROR_UNINITIALIZED;
    if (!started && !starts) return NVML_ERROR_UNINITIALIZED;
    if (needs_handle) {
        const struct gpu *g = handle;
        if (!(g >= gpus && g < gpus + count) && !(g >= slices && g < slices + count * MOST_SLICES))
            return NVML_ERROR_INVALID_ARGUMENT;
        gpu = g->index;
        if (gone(gpu)) return NVML_ERROR_INVALID_ARGUMENT;
        const struct fault *cut = g->slice ? met("mig", gpu, "*") : NULL;
        if (g->slice && !(cut && g->slice <= cut->number)) return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (!fault_count) return NVML_SUCCESS;
    hang(gpu, function);
    const struct fault *f;
    if (gpu >= 0 && met("lost", gpu, function)) return NVML_ERROR_GPU_IS_LOST;
    if ((f = met("error", gpu, function))) return (nvml_return)f->number;
    return NVML_SUCCESS;
}

/* ------------------------------------------------------------------ for the tests alone */

void stubSetTime(int64_t ns) { fixed_now = ns; }

/* Calls of one function since the library was loaded; of all, without a name. */
static int has_times;

static int64_t thread_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

/* What a real driver's call costs the processor. */
void takes_us(double us) {
    if (!has_times) return;
    for (int64_t end = thread_ns() + (int64_t)(us * 1000); thread_ns() < end;) ;
}

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
    if ((value = getenv("NVML_STUB_TIMES"))) has_times = atoi(value);
    if ((value = getenv("NVML_STUB_PERIOD_S")) && atof(value) > 0) period = (int64_t)(atof(value) * 1e9);
    value = getenv("NVML_STUB_BUSY");
    busy_part = (int64_t)((double)period * (value ? atof(value) : 0.5));
    control = getenv("NVML_STUB_CONTROL");
    for (int i = 0; i < MOST_GPUS; i++) gpus[i].index = i;
    for (int i = 0; i < MOST_GPUS * MOST_SLICES; i++)
        slices[i] = (struct gpu){i / MOST_SLICES, i % MOST_SLICES + 1};
    if (control) read_control();
    version = driver() ? driver()->gpu : 0;
}

