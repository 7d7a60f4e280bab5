/* A CUDA driver library for tests: contexts of threads, streams with a tail, events, capture. No GPU. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct { int device; } context;
typedef struct { int64_t passed_ns; int device; } event;
typedef struct { int device; int64_t tail_ns; int capturing; } stream;

static context contexts[2] = {{0}, {1}};
static int active[2] = {1, 0};
static stream defaults[2] = {{0, 0, 0}, {1, 0, 0}};
static __thread context *current;
static __thread int mode;
int stub_spoiled, stub_pushes;
static int capturing;

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}
static stream *of(stream *s) { return s ? s : current ? &defaults[current->device] : 0; }
static int unsafe(void) { if (capturing && mode != 2) { stub_spoiled = 1; return 900; } return 0; }

/* The test's side. */
void stub_enter(int device) { current = device < 0 ? 0 : &contexts[device]; }
void stub_activate(int device) { active[device] = 1; }
void stub_launch(stream *s, int64_t ns) { s = of(s); int64_t n = now_ns(); s->tail_ns = (s->tail_ns > n ? s->tail_ns : n) + ns; }
void stub_capture(stream *s, int on) { s->capturing = capturing = on; }
int64_t stub_tail(stream *s) { return of(s)->tail_ns; }

/* The driver's. */
int cuGetErrorName(int code, const char **name) {
  *name = code == 100 ? "CUDA_ERROR_NO_DEVICE" : code == 101 ? "CUDA_ERROR_INVALID_DEVICE" : "CUDA_ERROR_OTHER";
  return 0;
}
int cuDeviceGet(int *device, int ordinal) { if (ordinal > 1) return 101; *device = ordinal; return 0; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGetUuid(unsigned char *u, int device) { memset(u, 0xa0, 16); (void)device; return 0; }
int cuDeviceGetUuid_v2(unsigned char *u, int device) { memset(u, 0xa0, 16); u[15] += device; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is) { *flags = 0; *is = active[device]; return 0; }
int cuDevicePrimaryCtxRetain(context **c, int device) { active[device] = 1; *c = &contexts[device]; return 0; }
int cuCtxGetCurrent(context **c) { *c = current; return 0; }
int cuCtxGetDevice(int *device) { if (!current) return 201; *device = current->device; return 0; }
static __thread context *below[8];
static __thread int depth;
int cuCtxPushCurrent_v2(context *c) { stub_pushes++; below[depth++] = current; current = c; return 0; }
int cuCtxPopCurrent_v2(context **c) { *c = current; current = below[--depth]; return 0; }
int cuThreadExchangeStreamCaptureMode(int *m) { int old = mode; mode = *m; *m = old; return 0; }
int cuStreamCreate(stream **s, unsigned flags) {
  if (!current || flags != 1) return 201;
  *s = calloc(1, sizeof(stream));
  (*s)->device = current->device;
  return 0;
}
int cuStreamIsCapturing(stream *s, int *status) {
  if (!current) return 201;
  if (!s && capturing) return 906;
  *status = of(s)->capturing;
  return 0;
}
int cuEventCreate(event **e, unsigned flags) {
  if (!current || flags) return 201;
  *e = calloc(1, sizeof(event));
  (*e)->device = current->device;
  return 0;
}
int cuEventRecord(event *e, stream *s) {
  if (!current) return 201;
  s = of(s);
  if (s->device != e->device || s->device != current->device) return 400;
  int64_t n = now_ns();
  e->passed_ns = s->tail_ns > n ? s->tail_ns : n;
  return 0;
}
int cuEventQuery(event *e) { int bad = unsafe(); return bad ? bad : e->passed_ns > now_ns() ? 600 : 0; }
int cuEventElapsedTime(float *ms, event *a, event *b) {
  int bad = unsafe();
  if (bad) return bad;
  if (!current) return 201;
  if (a->passed_ns > now_ns() || b->passed_ns > now_ns()) return 600;
  *ms = (float)((b->passed_ns - a->passed_ns) / 1e6);
  return 0;
}
