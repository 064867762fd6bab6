/* The system calls that move bytes of a file to a socket, pipe or file.
 *
 * Thread contract: no state; what a mapping needs to be let go of lies with the caller. One call each: they may
 * wait for a sink without end, and -EINTR and short counts go back to the caller, whose signal handlers run
 * before it goes on.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bytes.h"
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

static int option(int fd, int name, seg_sink *sink)
{
    int value = -1;
    socklen_t len = sizeof value;
    sink->options++;
    return getsockopt(fd, SOL_SOCKET, name, &value, &len) < 0 ? -1 : value;
}

static int32_t kind_of_socket(int fd, seg_sink *sink)
{
    if (option(fd, SO_TYPE, sink) != SOCK_STREAM)
        return SEG_SINK_OTHER;
    int domain = option(fd, SO_DOMAIN, sink);
    if (domain == AF_UNIX)
        return SEG_SINK_UNIX;
    if (domain != AF_INET && domain != AF_INET6)
        return SEG_SINK_OTHER;
    return option(fd, SO_PROTOCOL, sink) == IPPROTO_TCP ? SEG_SINK_TCP : SEG_SINK_OTHER;
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
    return or_errno(sendfile(out, in, &from, one_call(count)));
}

/* seg_find_stretch, from where the last stretch ended if this one begins there. Two threads may mix up what they
 * write there: every position is one where a batch begins, and its header says whether it is the right one. */
static int find_from_last(int fd, const seg_sendable *s, int64_t offset, int64_t max_bytes, seg_found *at)
{
    int64_t last = __atomic_load_n(&s->next_offset, __ATOMIC_RELAXED);
    int64_t from = last == offset ? __atomic_load_n(&s->next_position, __ATOMIC_RELAXED) : -1;
    int64_t reads = 0;
    if (from >= 0) {
        if (seg_find_stretch(fd, s->index, s->n, s->base_offset, s->end, s->end_offset, from, offset, max_bytes, at))
            return 1;
        reads = at->reads;
    }
    int found = seg_find_stretch(fd, s->index, s->n, s->base_offset, s->end, s->end_offset, -1, offset, max_bytes, at);
    at->reads += reads;
    return found;
}

int64_t seg_send_stretch(int sink, int fd, seg_sendable *s, int64_t offset, int64_t max_bytes, seg_found *found)
{
    seg_found own, *at = found ? found : &own;
    at->reads = 0;
    if (offset < s->base_offset || offset >= s->below || max_bytes < 0 || (s->here && !s->here[0]))
        return SEG_SLOW;
    if (!find_from_last(fd, s, offset, max_bytes, at))
        return SEG_SLOW;
    int64_t count = at->stop - at->position, next = at->next_offset < s->below ? at->next_offset : s->below;
    int goes_on = at->stop == s->end && count < max_bytes && s->below < s->end_offset;
    if (goes_on || count <= 0 || count > INT32_MAX || next <= offset || next - offset > INT32_MAX)
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
    loff_t from = offset;
    unsigned flags = SPLICE_F_MOVE | (more ? SPLICE_F_MORE : 0);
    return or_errno(splice(in, offset < 0 ? NULL : &from, out, NULL, one_call(count), flags));
}

int64_t seg_pipe_bytes(int pipe, int64_t bytes)
{
    return or_errno(fcntl(pipe, F_SETPIPE_SZ, (int)bytes));
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
