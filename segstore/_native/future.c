/* The type of the producer's futures: an object with four fields that the garbage collector does not know.
 *
 * An application may keep millions of futures, and the collector visits each instance of a class that is
 * written in Python. So a future must be in no reference cycle once its outcome is known, for nobody would free it:
 * client/producer/future.py says why none is, and sets its methods on this type.
 *
 * Thread contract: that of any object of Python's; the interpreter's lock is held.
 */
#include <pyconfig.h>
#ifndef Py_GIL_DISABLED
#define Py_LIMITED_API 0x030A0000 /* as cffi's module: one wheel for all versions */
#endif
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    PyObject *at, *holder, *key, *time;
} Future;

static PyMemberDef members[] = {
    {"_at", T_OBJECT_EX, offsetof(Future, at), 0, NULL},
    {"_holder", T_OBJECT_EX, offsetof(Future, holder), 0, NULL},
    {"_key", T_OBJECT_EX, offsetof(Future, key), 0, NULL},
    {"_time", T_OBJECT_EX, offsetof(Future, time), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static void dealloc(PyObject *object)
{
    Future *self = (Future *)object;
    PyTypeObject *type = Py_TYPE(object);
    freefunc give_back = (freefunc)PyType_GetSlot(type, Py_tp_free);
    Py_XDECREF(self->at);
    Py_XDECREF(self->holder);
    Py_XDECREF(self->key);
    Py_XDECREF(self->time);
    give_back(object);
    Py_DECREF(type);
}

static PyType_Slot slots[] = {
    {Py_tp_members, members},
    {Py_tp_dealloc, (void *)dealloc},
    {0, NULL},
};

/* No Py_TPFLAGS_HAVE_GC; and no subclass, which would have it. */
static PyType_Spec spec = {
    .name = "segstore.client.producer.future.FutureRecordMetadata",
    .basicsize = sizeof(Future),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "segstore._native._future",
    .m_doc = "The type of the producer's futures.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__future(void)
{
    PyObject *made = PyModule_Create(&module);
    PyObject *type = made ? PyType_FromSpec(&spec) : NULL;
    if (type == NULL || PyModule_AddObjectRef(made, "FutureRecordMetadata", type) < 0)
        Py_CLEAR(made);
    Py_XDECREF(type);
    return made;
}
