/* `PartitionLog.transfer` by seg_send_stretch (transfer.c), as one Python function.
 *
 * The Python functions around that call took as long as sendfile(2) of a small batch. So this reads the partition's
 * view itself, and sends if an earlier transfer from that view has left a `Sendable`, and the view has not changed
 * since. Otherwise nothing is done, and Python makes the transfer.
 *
 * Thread contract: any threads, which hold the interpreter's lock. The state of the view is of one moment, because no
 * Python code runs in between: only attributes of plain objects are read. The lock is released for seg_send_stretch,
 * which may wait for the sink or the disk; references keep the memory alive, and the file open, during the call.
 */
#include "objects.h"

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>

#include "bytes.h"
#include "contract/answers.h"
#include "contract/log.h"
#include "contract/segment.h"
#include "contract/transfer.h"

typedef int64_t (*send_function)(int, int, seg_sendable *, int64_t, int64_t, seg_found *);

/* A segment for seg_send_stretch, for offsets from `first` on and below `below`. It does not keep the log open. */
typedef struct {
    PyObject_HEAD
    PyObject *handle;       /* a weak reference to the log's handle */
    PyObject *segment;      /* cffi's seg_sendable *, whose memory `c` is */
    PyObject *memory;       /* the owners of memory that `c` points to */
    PyObject *tail;         /* cffi's seg_tail * of the log, or None */
    long long first, below; /* `below` as in `c`, whose end_offset is the view's end */
    char spent;             /* it was of no use, and must be made again */
    char offered;           /* it was passed to seg_transfer, if that could use it */
    seg_sendable *c;
    const seg_tail *tail_c;
} Sendable;

enum { VIEWS, CONTEXT, SINK, OFFSET, MAX_BYTES, METHOD, ARGUMENTS };

/* Set once, when the module is made, and when the package is imported. */
static PyTypeObject *sendable_type;
static send_function send_stretch;
static PyObject *current_name, *at_once_name, *closed_name, *fd_name;
static PyObject *sendfile_method, *getsignal, *sigpipe, *ignored;

/* --- a Sendable ---------------------------------------------------------------- */

static PyMemberDef sendable_members[] = {
    {"handle", T_OBJECT_EX, offsetof(Sendable, handle), READONLY, NULL},
    {"segment", T_OBJECT_EX, offsetof(Sendable, segment), READONLY, NULL},
    {"first", T_LONGLONG, offsetof(Sendable, first), READONLY, NULL},
    {"below", T_LONGLONG, offsetof(Sendable, below), READONLY, NULL},
    {"spent", T_BOOL, offsetof(Sendable, spent), 0, NULL},
    {"offered", T_BOOL, offsetof(Sendable, offered), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* Sendable(handle, segment, its address, memory, first, tail, its address or 0) */
static PyObject *make_sendable(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    PyObject *handle, *segment, *memory, *tail;
    long long address, first, tail_address;
    if (!PyArg_ParseTuple(arguments, "OOLOLOL", &handle, &segment, &address, &memory, &first, &tail, &tail_address))
        return NULL;
    Sendable *self = (Sendable *)PyType_GenericNew(type, NULL, NULL);
    if (self == NULL)
        return NULL;
    Py_INCREF(handle);
    Py_INCREF(segment);
    Py_INCREF(memory);
    Py_INCREF(tail);
    self->handle = handle;
    self->segment = segment;
    self->memory = memory;
    self->tail = tail;
    self->c = (seg_sendable *)(intptr_t)address;
    self->first = first;
    self->below = self->c->below;
    self->tail_c = (const seg_tail *)(intptr_t)tail_address;
    return (PyObject *)self;
}

static void free_sendable(PyObject *object)
{
    Sendable *self = (Sendable *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(self->handle);
    Py_XDECREF(self->segment);
    Py_XDECREF(self->memory);
    Py_XDECREF(self->tail);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyType_Slot sendable_slots[] = {
    {Py_tp_members, sendable_members},
    {Py_tp_new, (void *)make_sendable},
    {Py_tp_dealloc, (void *)free_sendable},
    {0, NULL},
};

/* No Py_TPFLAGS_HAVE_GC: it refers to cffi's memory, a weak reference, and owners of memory; none of them refers to a
 * view. */
static PyType_Spec sendable_spec = {
    .name = "segstore._native._transfer.Sendable",
    .basicsize = sizeof(Sendable),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = sendable_slots,
};

/* --- whether a Sendable is still valid ------------------------------------------ */

/* Whether the partition's `Visible` still shows its view up to the same end. */
static int ends_alike(const Sendable *known)
{
    return known->tail_c != NULL &&
        __atomic_load_n(&known->tail_c->seen_offset, __ATOMIC_ACQUIRE) == known->c->segment.end_offset;
}

/* The Sendable of the partition's view for the segment that holds `offset`, a new reference; NULL if Python must look
 * it up. */
static Sendable *known_of(PyObject *views, int64_t offset)
{
    if (views == Py_None)
        return NULL;
    PyObject *view = PyObject_GetAttr(views, current_name);
    PyObject *found = view == NULL ? NULL : PyObject_GetAttr(view, at_once_name);
    Py_XDECREF(view);
    if (found == NULL)
        return NULL;
    Sendable *known = (Sendable *)found;
    if (Py_TYPE(found) == sendable_type && !known->spent && offset >= known->first && offset < known->below && ends_alike(known))
        return known;
    Py_DECREF(found);
    return NULL;
}

static int is_closed(PyObject *context)
{
    PyObject *closed = PyObject_GetAttr(context, closed_name);
    Py_XDECREF(closed);
    return closed != Py_False;
}

/* Whether a sink without a reader causes an error, not a SIGPIPE. */
static int ignores_sigpipe(void)
{
    PyObject *handler = PyObject_CallFunctionObjArgs(getsignal, sigpipe, NULL);
    int same = handler == NULL ? 0 : PyObject_RichCompareBool(handler, ignored, Py_EQ);
    Py_XDECREF(handler);
    return same == 1;
}

/* An int from 0 to `most`, else -1. */
static int64_t up_to(PyObject *object, int64_t most)
{
    int overflow = 0;
    if (!PyLong_CheckExact(object))
        return -1;
    int64_t number = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow || number > most ? -1 : number;
}

/* The descriptor of an open log, -1 if it is closed. */
static int descriptor_of(PyObject *handle)
{
    PyObject *number = handle == Py_None ? NULL : PyObject_GetAttr(handle, fd_name);
    int64_t fd = number == NULL ? -1 : up_to(number, INT32_MAX);
    Py_XDECREF(number);
    return (int)fd;
}

/* --- the call ------------------------------------------------------------------- */

static PyObject *send(Sendable *known, PyObject *handle, int fd, int sink, int64_t offset, int64_t max_bytes)
{
    int64_t result;
    Py_BEGIN_ALLOW_THREADS
    result = send_stretch(sink, fd, known->c, offset, max_bytes, NULL);
    Py_END_ALLOW_THREADS
    if (result > 0)
        return Py_BuildValue("(LL)", (long long)(result >> 32), (long long)(offset + (result & UINT32_MAX)));
    if (result == SEG_SLOW)
        known->spent = 1;
    return Py_BuildValue("[LOO]", (long long)result, known, handle);
}

static PyObject *transfer(PyObject *module, PyObject *const *arguments, Py_ssize_t n)
{
    if (n != ARGUMENTS) {
        PyErr_Format(PyExc_TypeError, "seg_transfer takes %d arguments, not %zd", (int)ARGUMENTS, n);
        return NULL;
    }
    int64_t sink = up_to(arguments[SINK], INT32_MAX), offset = up_to(arguments[OFFSET], INT64_MAX);
    int64_t max_bytes = up_to(arguments[MAX_BYTES], INT64_MAX);
    if (sink < 0 || offset < 0 || max_bytes < 0 || arguments[METHOD] != sendfile_method || is_closed(arguments[CONTEXT])) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    PyObject *sent = NULL;
    Sendable *known = known_of(arguments[VIEWS], offset);
    PyObject *handle = known == NULL ? NULL : PyObject_CallFunctionObjArgs(known->handle, NULL);
    int fd = handle == NULL ? -1 : descriptor_of(handle);
    if (fd >= 0 && ignores_sigpipe()) {
        sent = send(known, handle, fd, (int)sink, offset, max_bytes);
    } else {
        PyErr_Clear();
        sent = Py_None;
        Py_INCREF(sent);
    }
    Py_XDECREF(handle);
    Py_XDECREF(known);
    return sent;
}

static PyObject *bind(PyObject *module, PyObject *address)
{
    void *function = PyLong_AsVoidPtr(address);
    if (PyErr_Occurred())
        return NULL;
    send_stretch = (send_function)function;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"seg_transfer", (PyCFunction)(void (*)(void))transfer, METH_FASTCALL,
     "Transfer by sendfile, for a partition's Visible or None, its Context, sink, offset, max_bytes and method. Return "
     "(bytes sent, next offset); None if Python must make the transfer; a list if Python must finish it: the answer of "
     "seg_send_stretch (contract/transfer.h), the Sendable, and the log's Handle."},
    {"bind", bind, METH_O, "Take the address of seg_send_stretch of cffi's module."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "segstore._native._transfer",
    .m_doc = "PartitionLog.transfer of what a view has sent from before.",
    .m_size = -1,
    .m_methods = functions,
};

static int take_names(void)
{
    struct { PyObject **at; const char *text; } names[] = {
        {&current_name, "current"}, {&at_once_name, "at_once"},
        {&closed_name, "closed"}, {&fd_name, "fd"}, {&sendfile_method, "sendfile"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((*names[i].at = PyUnicode_InternFromString(names[i].text)) == NULL)
            return 0;
    PyObject *signals = PyImport_ImportModule("_signal"); /* `signal` converts the result of getsignal to an enum */
    if (signals == NULL)
        return 0;
    getsignal = PyObject_GetAttrString(signals, "getsignal");
    ignored = PyObject_GetAttrString(signals, "SIG_IGN");
    sigpipe = PyLong_FromLong(SIGPIPE);
    Py_DECREF(signals);
    return getsignal != NULL && ignored != NULL && sigpipe != NULL;
}

PyMODINIT_FUNC PyInit__transfer(void)
{
    PyObject *module = take_names() ? PyModule_Create(&module_definition) : NULL;
    if (module == NULL)
        return NULL;
    sendable_type = (PyTypeObject *)PyType_FromSpec(&sendable_spec);
    if (sendable_type == NULL || PyModule_AddObjectRef(module, "Sendable", (PyObject *)sendable_type) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
