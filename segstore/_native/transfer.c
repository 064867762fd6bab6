/* The system calls that move bytes of a file to a socket, pipe or file; and a table of found stretches of batches, so
 * that a stretch that is sent again needs no read of headers.
 *
 * Thread contract: the table is the only state, and any threads may use it at once; the caller owns mappings. A
 * function makes one system call: it may wait for a sink for ever, and returns -EINTR and short counts to the caller,
 * whose signal handlers run before the next call.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bytes.h"
#include "contract/answers.h"
#include "contract/segment.h"
#include "contract/transfer.h"
#include "system.h"

/* The kernel moves at most 0x7ffff000 bytes a call. */
static size_t one_call(int64_t len)
{
    return len > 0x7ffff000 ? 0x7ffff000 : (size_t)len;
}

static int64_t or_errno(ssize_t result)
{
    return result < 0 ? -errno : result;
}

static int32_t kind_of_socket(int fd, seg_sink *sink)
{
    sink->options++;
    if (socket_option(fd, SO_TYPE) != SOCK_STREAM)
        return SEG_SINK_OTHER;
    sink->options++;
    int domain = domain_of(fd);
    if (domain == AF_UNIX)
        return SEG_SINK_UNIX;
    if (domain != AF_INET && domain != AF_INET6)
        return SEG_SINK_OTHER;
    sink->options++;
    return protocol_of(fd) == IPPROTO_TCP ? SEG_SINK_TCP : SEG_SINK_OTHER;
}

int64_t seg_look_at(int fd, seg_sink *sink)
{
    struct stat st;
    memset(sink, 0, sizeof *sink);
    if (fstat(fd, &st) < 0)
        return -errno;
    if (S_ISREG(st.st_mode)) {
        sink->kind = SEG_SINK_FILE;
        int flags = fcntl(fd, F_GETFL);
        if (flags < 0)
            return -errno;
        sink->appends = (flags & O_APPEND) != 0;
        return 0;
    }
    sink->kind = S_ISFIFO(st.st_mode) ? SEG_SINK_PIPE : S_ISSOCK(st.st_mode) ? kind_of_socket(fd, sink) : SEG_SINK_OTHER;
    return 0;
}

int64_t seg_sendfile(int out, int in, int64_t offset, int64_t count)
{
    off_t from = offset;
    return or_errno(send_file(out, in, &from, one_call(count)));
}

/* --- the table of stretches --------------------------------------------------- */

/* Readable batches of a segment never change (`Segment.number`), so an entry is never invalidated: it is a range of
 * whole batches, and is used if all of them are still visible. The end of a stretch may change as the log grows, see
 * recall(). An entry is a cache line; a new one replaces the entry in its slot. */
typedef struct {
    uint64_t sequence;      /* odd while the other fields change */
    int64_t segment, offset;
    int64_t position, stop, next_offset, first; /* as in seg_found */
    int64_t asked;          /* max_bytes for which the stretch is final; -1: not known */
} remembered;

enum { REMEMBERED_BITS = 13 };
static remembered table[1 << REMEMBERED_BITS] __attribute__((aligned(64)));

static remembered *slot_of(const seg_sendable *s, int64_t offset)
{
    uint64_t mixed = ((uint64_t)offset + ((uint64_t)s->segment.number << 40)) * 0x9e3779b97f4a7c15u;
    return &table[mixed >> (64 - REMEMBERED_BITS)];
}

#define GET(field) __atomic_load_n(&(field), __ATOMIC_ACQUIRE)
#define PUT(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELEASE)

/* Whether *at is the answer of seg_find_stretch: all of it is visible, and it ends at the wanted number of bytes (it is
 * one batch, or was found for that number), or at the log's end. */
static int is_answer(const seg_sendable *s, int64_t max_bytes, int64_t asked, const seg_found *at)
{
    int64_t size = at->stop - at->position;
    if (at->stop > s->segment.end || at->next_offset > s->segment.end_offset)
        return 0;
    return (size == at->first && max_bytes <= size) || max_bytes == asked || (at->stop == s->segment.end && max_bytes >= size);
}

static int recall(const seg_sendable *s, int64_t offset, int64_t max_bytes, seg_found *at)
{
    const remembered *r = slot_of(s, offset);
    uint64_t before = GET(r->sequence);
    if (!s->remembers || before & 1 || GET(r->segment) != s->segment.number || GET(r->offset) != offset)
        return 0;
    int64_t asked = GET(r->asked);
    *at = (seg_found){.position = GET(r->position), .stop = GET(r->stop), .next_offset = GET(r->next_offset),
                      .first = GET(r->first)};
    return __atomic_load_n(&r->sequence, __ATOMIC_RELAXED) == before && is_answer(s, max_bytes, asked, at);
}

static void remember(const seg_sendable *s, int64_t offset, int64_t max_bytes, const seg_found *at)
{
    remembered *r = slot_of(s, offset);
    uint64_t before = __atomic_load_n(&r->sequence, __ATOMIC_RELAXED);
    if (!s->remembers || before & 1 ||
        !__atomic_compare_exchange_n(&r->sequence, &before, before + 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return;
    PUT(r->segment, s->segment.number);
    PUT(r->offset, offset);
    PUT(r->position, at->position);
    PUT(r->stop, at->stop);
    PUT(r->next_offset, at->next_offset);
    PUT(r->first, at->first);
    PUT(r->asked, at->final ? max_bytes : -1);
    PUT(r->sequence, before + 2);
}

/* Find a stretch by seg_find_stretch, from the end of the last one if this one begins there. Two threads may mix up the
 * fields of that end: each position is the start of a batch, and its header shows whether it is the right one. */
static int find_from_last(int fd, const seg_sendable *s, int64_t offset, int64_t max_bytes, seg_found *at)
{
    int64_t last = __atomic_load_n(&s->next_offset, __ATOMIC_RELAXED);
    int64_t from = last == offset ? __atomic_load_n(&s->next_position, __ATOMIC_RELAXED) : -1;
    int64_t reads = 0;
    if (from >= 0) {
        if (seg_find_stretch(fd, &s->segment, from, offset, max_bytes, at))
            return 1;
        reads = at->reads;
    }
    int found = seg_find_stretch(fd, &s->segment, -1, offset, max_bytes, at);
    at->reads += reads;
    return found;
}

int64_t seg_send_stretch(int sink, int fd, seg_sendable *s, int64_t offset, int64_t max_bytes, seg_found *found)
{
    const seg_segment *of = &s->segment;
    seg_found own, *at = found ? found : &own;
    at->reads = 0;
    if (offset < of->base_offset || offset >= s->below || max_bytes < 0 || (s->owner && !s->owner[0]))
        return SEG_SLOW;
    if (!recall(s, offset, max_bytes, at)) {
        at->reads = 0;
        if (!find_from_last(fd, s, offset, max_bytes, at))
            return SEG_SLOW;
        remember(s, offset, max_bytes, at);
    }
    int64_t count = at->stop - at->position, next = at->next_offset;
    int goes_on = at->stop == of->end && count < max_bytes && s->below < of->end_offset;
    /* A segment ends at the next one's base offset, even if it has more bytes. */
    if (next > s->below || goes_on || count <= 0 || count > INT32_MAX || next <= offset || next - offset > INT32_MAX)
        return SEG_SLOW;
    int64_t sent = seg_sendfile(sink, fd, at->position, count);
    if (sent < 0)
        return sent;
    if (sent < count)
        return SEG_PART - sent;
    __atomic_store_n(&s->next_position, at->stop, __ATOMIC_RELAXED);
    __atomic_store_n(&s->next_offset, next, __ATOMIC_RELAXED);
    return count << 32 | (next - offset);
}

int64_t seg_splice(int in, int64_t offset, int out, int64_t count, int32_t more)
{
    off_t from = offset;
    return or_errno(move_pages(in, offset < 0 ? NULL : &from, out, one_call(count), more));
}

int64_t seg_pipe_bytes(int pipe, int64_t bytes)
{
    return or_errno(resize_pipe(pipe, (int)bytes));
}

int64_t seg_write(int out, const uint8_t *buf, int64_t len)
{
    return or_errno(write(out, buf, one_call(len)));
}

int64_t seg_append_range(int out, int in, int64_t offset, int64_t count)
{
    off_t from = offset;
    return or_errno(copy_range(in, &from, out, NULL, one_call(count)));
}

/* --- windows ----------------------------------------------------------- */

int64_t seg_map_window(seg_window *w, int fd, int64_t position, int64_t count)
{
    int64_t page = sysconf(_SC_PAGESIZE), start = position - position % page;
    if (w->memory || position < 0 || count <= 0 || count > INT64_MAX - position)
        return -EINVAL;
    void *p = mmap(NULL, (size_t)(position + count - start), PROT_READ, MAP_SHARED, fd, start);
    if (p == MAP_FAILED)
        return -errno;
    w->memory = p;
    w->mapped = position + count - start;
    w->position = start;
    return 0;
}

int64_t seg_unmap_window(seg_window *w)
{
    if (w->memory && munmap(w->memory, (size_t)w->mapped) < 0)
        return -errno;
    memset(w, 0, sizeof *w);
    return 0;
}

int64_t seg_write_window(int out, const seg_window *w, int64_t position, int64_t count)
{
    int64_t at = position - w->position;
    if (!w->memory || at < 0 || count < 0 || count > w->mapped - at)
        return -EINVAL;
    return seg_write(out, w->memory + at, count);
}
