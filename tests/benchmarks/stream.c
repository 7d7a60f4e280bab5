/* A copy and a triad as STREAM has them, a thread per core: prints the faster one's bytes per second.
   Arguments: threads, elements per array. Build: cc -O3 -march=native -pthread. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define BURSTS 12

static double *a, *b, *c;
static size_t n, threads;
static pthread_barrier_t gate;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void copy(size_t from, size_t to) {
    for (size_t i = from; i < to; i++) c[i] = a[i];
}

static void triad(size_t from, size_t to) {
    for (size_t i = from; i < to; i++) c[i] = a[i] + 3.0 * b[i];
}

static void *work(void *number) {
    size_t from = n / threads * (size_t)number, to = from + n / threads;
    for (size_t i = from; i < to; i++) a[i] = 1.0, b[i] = 2.0, c[i] = 0.0;
    for (int burst = 0; burst < BURSTS; burst++) {
        pthread_barrier_wait(&gate);
        copy(from, to);
        pthread_barrier_wait(&gate);
        triad(from, to);
    }
    pthread_barrier_wait(&gate);
    return NULL;
}

int main(int count, char **words) {
    if (count != 3) return 2;
    threads = strtoul(words[1], NULL, 10);
    n = strtoul(words[2], NULL, 10) / threads * threads;
    a = malloc(n * sizeof *a), b = malloc(n * sizeof *b), c = malloc(n * sizeof *c);
    pthread_t *workers = malloc(threads * sizeof *workers);
    if (!a || !b || !c || !workers) return 3;
    pthread_barrier_init(&gate, NULL, threads + 1);
    for (size_t i = 0; i < threads; i++) pthread_create(&workers[i], NULL, work, (void *)i);
    double best = 0.0, bytes = 2.0 * n * sizeof(double), then;
    pthread_barrier_wait(&gate);
    then = now();
    for (int burst = 0; burst < 2 * BURSTS; burst++) {
        pthread_barrier_wait(&gate);
        double moment = now(), rate = (burst % 2 ? 1.5 * bytes : bytes) / (moment - then);
        then = moment;
        if (burst > 1 && rate > best) best = rate;
    }
    for (size_t i = 0; i < threads; i++) pthread_join(workers[i], NULL);
    printf("%.0f\n", best);
    return 0;
}
