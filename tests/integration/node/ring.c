// ring FILE: `signal end_ns value unit [length_ns]` of the newest samples in a file as docs/node-timeline.md has it.
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct { char magic[8]; uint16_t version, streams, columns, zero; uint64_t generation; int64_t created_ns;
                 char uuid[96]; uint64_t check; } Header;
typedef struct { char name[16]; uint64_t offset; uint32_t slots; uint16_t row, first, columns, aged, zero[2]; } Stream;
typedef struct { char key[40]; double quantum; char unit[12], kind, zero; uint16_t offset; } Column;
typedef struct { uint64_t number; int64_t end_ns, value; uint32_t window_ns; } Best;
static union { struct { Header header; Stream streams[512]; }; uint64_t words[17 + 5 * 512 + 8 * 1024]; } head;
static union { struct { uint64_t number; int64_t end_ns; }; uint64_t words[8192]; char bytes[65536]; } row;
static Column columns[1024];
#define NEED(condition) if (!(condition)) return fprintf(stderr, "not as it should be: %s\n", #condition), 1

static uint64_t check(uint64_t found, const uint64_t *words, int count) {
    const uint64_t prime = -UINT64_C(59), point = UINT64_C(0x1B873593CC9E2D51);
    while (count--) found = (uint64_t)(((unsigned __int128)found * point + *words++) % prime);
    return found;
}

int main(int count, char **words) {
    const int fd = count == 2 ? open(words[1], O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
    const int64_t length = pread(fd, &head, sizeof head, 0);
    const Header h = head.header;
    const int end = 136 + 40 * h.streams + 64 * h.columns;
    NEED(length >= end && !memcmp(h.magic, "GPURING\n", 8) && h.version == 3 && h.streams <= 512 && h.columns <= 1024);
    head.header.check = 0;
    NEED(h.check == check(0, head.words, end / 8));
    memcpy(columns, &head.streams[h.streams], sizeof(Column) * h.columns);
    for (const Stream *s = head.streams; s < head.streams + h.streams; s++) {
        Best best[1024] = {0};
        const int last = s->first + s->columns, body = s->row - 8;
        NEED(s->slots - 1 < 1 << 20 && last <= h.columns && body >= 16 && body % 8 == 0 && s->offset >= (uint64_t)end);
        for (uint64_t slot = 0; slot < s->slots; slot++) {
            NEED(pread(fd, &row, s->row, s->offset + slot * s->row) == s->row);
            if (row.number % s->slots != (slot + 1) % s->slots) continue;
            if (row.words[body / 8] != check(h.generation, row.words, body / 8)) continue;
            for (int k = s->first, same = k; k < last; k++, same = s->first) {
                const Column *c = columns + k;
                const int at = c->offset + 4 * s->aged; uint32_t age = 0;
                union { int64_t count; int32_t pair[2]; } cell;  // a pair: length and value of a window mean
                NEED(memchr("cwi", c->kind, 3) && s->aged < 2 && at >= 16 && at + (c->kind == 'i' ? 4 : 8) <= body);
                memcpy(&age, row.bytes + c->offset, 4 * s->aged), memcpy(&cell, row.bytes + at, 8);
                const int64_t value = c->kind == 'c' ? cell.count : cell.pair[c->kind == 'w'];
                while (strncmp(columns[same].key, c->key, 40)) same++;
                if (value == (c->kind == 'c' ? INT64_MIN : INT32_MIN) || row.number < best[same].number) continue;
                best[same] = (Best){row.number, row.end_ns - age, value, cell.pair[0]};
            }
        }
        for (int k = s->first; k < last; k++) {
            const Best b = best[k];
            if (b.number) printf("%.40s %" PRId64 " %.17g", columns[k].key, b.end_ns, b.value * columns[k].quantum);
            if (b.number) printf(columns[k].kind == 'w' ? " %.12s %u\n" : " %.12s\n", columns[k].unit, b.window_ns);
        }
    }
    return 0;
}
