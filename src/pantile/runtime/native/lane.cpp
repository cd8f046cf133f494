// A call like the one before, from Python's arguments to Python's results, without Python between.
//
//     args ── kinds ──► prepare() ──► weights, tables ──► new results ──► loop ──► marks ──► build
//               │           │               │                              │
//               └─ MISS ◄───┴───────────────┘                        finish(done) if it paused
//
// Who calls it holds the lock of the executor, so no other thread runs the loop meanwhile.
//
// An extension of Python, compiled once per machine with the headers of the torch and the Python
// that are running, so it reads tensors as torch does. hot_call.py does the same where there is no
// compiler or no header, and says what is compared and why.
//
// Two types: `Tables` (do these dicts and lists still hold the very objects they held?) and `Lane`.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <ATen/EmptyTensor.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

PyObject* THPVariable_Wrap(at::TensorBase&& tensor);  // of libtorch_python

namespace {

// ---- References ---------------------------------------------------------------------------------

// An owned reference to an object.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  static Ref to(PyObject* borrowed) {
    Py_XINCREF(borrowed);
    return Ref(borrowed);
  }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* give() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }
  bool is_none() const { return object_ == Py_None; }

 private:
  PyObject* object_ = nullptr;
};

using Refs = std::vector<Ref>;

bool take_all(PyObject* sequence, Refs& into) {
  Ref fast(PySequence_Fast(sequence, "a sequence is needed"));
  if (!fast) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.get()); ++i)
    into.push_back(Ref::to(PySequence_Fast_GET_ITEM(fast.get(), i)));
  return true;
}

int visit_all(const Refs& refs, visitproc visit, void* arg) {
  for (const Ref& ref : refs) Py_VISIT(ref.get());
  return 0;
}

// ---- Tables -------------------------------------------------------------------------------------

// A dict or list with what it held: keys and values in turns, or values.
struct Table {
  Ref container;
  Refs held;

  bool take(PyObject* given) {
    container = Ref::to(given);
    if (PyList_Check(given)) return take_all(given, held);
    if (!PyDict_Check(given)) {
      PyErr_SetString(PyExc_TypeError, "only dicts and lists can be watched");
      return false;
    }
    PyObject *key, *value;
    for (Py_ssize_t i = 0; PyDict_Next(given, &i, &key, &value);) {
      held.push_back(Ref::to(key));
      held.push_back(Ref::to(value));
    }
    return true;
  }

  bool same() const {
    PyObject* now = container.get();
    const size_t count = held.size();
    if (PyList_Check(now)) {
      if (static_cast<size_t>(PyList_GET_SIZE(now)) != count) return false;
      for (size_t i = 0; i < count; ++i)
        if (PyList_GET_ITEM(now, i) != held[i].get()) return false;
      return true;
    }
    if (static_cast<size_t>(PyDict_GET_SIZE(now)) * 2 != count) return false;
    if (count == 0) return true;
    PyObject *key, *value;
    size_t place = 0;
    for (Py_ssize_t i = 0; PyDict_Next(now, &i, &key, &value); place += 2)
      if (key != held[place].get() || value != held[place + 1].get()) return false;
    return true;
  }
};

struct Tables {
  PyObject_HEAD
  std::vector<Table>* tables;

  bool same() const {
    for (const Table& table : *tables)
      if (!table.same()) return false;
    return true;
  }
};

PyObject* tables_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* containers;
  if (!PyArg_ParseTuple(args, "O", &containers)) return nullptr;
  Refs given;
  if (!take_all(containers, given)) return nullptr;
  Ref made(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  auto* tables = reinterpret_cast<Tables*>(made.get())->tables = new std::vector<Table>;
  for (const Ref& ref : given) {
    tables->emplace_back();
    if (!tables->back().take(ref.get())) return nullptr;
  }
  return made.give();
}

PyObject* tables_call(PyObject* self, PyObject*, PyObject*) {
  return PyBool_FromLong(reinterpret_cast<Tables*>(self)->same());
}

int tables_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  auto* tables = reinterpret_cast<Tables*>(self)->tables;
  if (tables == nullptr) return 0;
  for (const Table& table : *tables) {
    Py_VISIT(table.container.get());
    if (const int stop = visit_all(table.held, visit, arg)) return stop;
  }
  return 0;
}

int tables_clear(PyObject* self) {
  auto* tables = reinterpret_cast<Tables*>(self)->tables;
  // Emptied, not freed: it may be called by what it lets go.
  if (tables != nullptr) std::vector<Table>().swap(*tables);
  return 0;
}

void tables_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  delete std::exchange(reinterpret_cast<Tables*>(self)->tables, nullptr);
  type->tp_free(self);
  Py_DECREF(type);
}

// ---- Tensors ------------------------------------------------------------------------------------

// Where in the object of a tensor the tensor is. Headers that say it take 20 s to compile, so it is
// found by looking: see `find_tensor`.
Py_ssize_t tensor_offset = 0;
PyTypeObject* tensor_type = nullptr;  // torch._C.TensorBase

at::TensorImpl* impl_at(PyObject* object, Py_ssize_t offset) {
  return *reinterpret_cast<at::TensorImpl**>(reinterpret_cast<char*>(object) + offset);
}

at::TensorImpl* impl_of(PyObject* object) {
  return PyObject_TypeCheck(object, tensor_type) ? impl_at(object, tensor_offset) : nullptr;
}

// What the address of a tensor's data depends on, and what programs were compiled for.
struct Kind {
  PyTypeObject* type;
  c10::DispatchKeySet keys, other_keys;  // either will do
  caffe2::TypeMeta dtype;
  bool requires_grad;
  std::vector<int64_t> sizes, strides;  // a stride of -1: any
  size_t bytes;                         // from the first to the last element

  // Of a tensor as it is; strides of dims of size one say nothing.
  Kind(PyTypeObject* type, const at::TensorImpl* of)
      : type(type), keys(of->key_set()), other_keys(keys), dtype(of->dtype()), requires_grad(of->requires_grad()),
        sizes(of->sizes().vec()), strides(of->strides().vec()) {
    int64_t last = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      last += (sizes[i] - 1) * strides[i];
      if (sizes[i] == 1) strides[i] = -1;
    }
    bytes = (static_cast<size_t>(last) + 1) * dtype.itemsize();
  }

  // Where the data of such a tensor is; null if it is of another kind, or without memory.
  void* data_of(PyObject* object) const {
    if (Py_TYPE(object) != type) return nullptr;
    at::TensorImpl* impl = impl_at(object, tensor_offset);
    const c10::DispatchKeySet own = impl->key_set();
    if ((own != keys && own != other_keys) || impl->dtype() != dtype || !impl->device().is_cpu() ||
        impl->requires_grad() != requires_grad)
      return nullptr;
    const at::IntArrayRef now = impl->sizes(), steps = impl->strides();
    if (now.size() != sizes.size()) return nullptr;
    for (size_t i = 0; i < sizes.size(); ++i)
      if (now[i] != sizes[i] || (strides[i] >= 0 && steps[i] != strides[i])) return nullptr;
    const size_t begin = static_cast<size_t>(impl->storage_offset()) * dtype.itemsize();
    if (impl->storage().nbytes() < begin + bytes) return nullptr;
    return impl->mutable_data();
  }
};

struct Weight {
  Ref host;
  Kind kind;
  void* data;
};

struct Result {
  std::vector<int64_t> sizes, strides;
  at::ScalarType dtype;
};

// ---- The lane -----------------------------------------------------------------------------------

using Run = int64_t (*)(void* loop, int64_t next, int64_t end, int32_t fresh, void* failure);
enum Build : int { ONE, TUPLE, LIST, OTHER };

// See hot_call.py, which makes it, for what the parts are.
struct Parts {
  Run run;
  void *loop, *failure;
  int64_t iterations;
  void** pointers;
  c10::impl::PODLocalDispatchKeySet modes, inference_modes;
  std::vector<Kind> arguments;
  std::vector<Weight> weights;
  std::vector<Result> results;
  uint64_t* constants;
  Refs watched;
  Ref miss, tables, links, link, pull, prepare, finish, after, backward, build;
  Ref prepared;  // tables: while they are the same, prepare() need not be asked
  Refs marks;  // object, name, value in turns
  Build how = OTHER;
  bool busy = false;
  Py_buffer pulse{};

  Parts() = default;
  Parts(const Parts&) = delete;
  ~Parts() {
    if (pulse.obj != nullptr) PyBuffer_Release(&pulse);
  }

  int visit(visitproc visit, void* arg) const {
    for (const Weight& weight : weights) Py_VISIT(weight.host.get());
    if (const int stop = visit_all(watched, visit, arg)) return stop;
    for (const Ref* ref : {&miss, &tables, &links, &link, &pull, &prepare, &finish, &after,
                           &backward, &build, &prepared})
      Py_VISIT(ref->get());
    return visit_all(marks, visit, arg);
  }
};

struct Lane {
  PyObject_HEAD
  Parts* parts;
  vectorcallfunc call;
};

PyObject* backward_name = nullptr;

// Calls an optional function; false if it raised, or said no.
bool asked(const Ref& function, bool& failed) {
  if (function.is_none()) return true;
  Ref answer(PyObject_CallNoArgs(function.get()));
  const int truth = answer ? PyObject_IsTrue(answer.get()) : -1;
  failed = truth < 0;
  return truth > 0;
}

class Call {
 public:
  explicit Call(Parts& parts) : parts_(parts) {}

  PyObject* run(PyObject* args) {
    bool failed = false;
    if (!fits(args) || !pulled(failed) || !prepared(failed) || !unchanged())
      return failed ? nullptr : missed();
    if (parts_.busy) return missed();  // a signal's handler calls: the long way explains it
    parts_.busy = true;
    const bool done = compute();
    parts_.busy = false;
    return done && noted() ? built() : nullptr;
  }

 private:
  PyObject* missed() const { return Ref::to(parts_.miss.get()).give(); }

  bool fits(PyObject* args) {
    const size_t count = parts_.arguments.size();
    if (!PyTuple_CheckExact(args) || static_cast<size_t>(PyTuple_GET_SIZE(args)) != count)
      return false;
    if (!are_modes(parts_.modes)) {
      if (!are_modes(parts_.inference_modes) || !parts_.prepare.is_none()) return false;
      normal_.emplace(false);  // results are ordinary tensors, as those of the long way
    }
    for (size_t i = 0; i < count; ++i) {
      void* data = parts_.arguments[i].data_of(PyTuple_GET_ITEM(args, i));
      if (data == nullptr) return false;
      data_.push_back(data);
    }
    return true;
  }

  static bool are_modes(const c10::impl::PODLocalDispatchKeySet& known) {
    const auto& now = c10::impl::raw_local_dispatch_key_set;
    return now.included_ == known.included_ && now.excluded_ == known.excluded_;
  }

  // Weights that an executor keeps to itself are asked for.
  bool pulled(bool& failed) {
    if (PyDict_GET_SIZE(parts_.links.get()) == 0) return true;
    PyObject* found = PyDict_GetItemWithError(parts_.links.get(), parts_.link.get());
    if (found == nullptr) return !(failed = PyErr_Occurred() != nullptr);
    Ref answer(PyObject_CallNoArgs(parts_.pull.get()));
    return !(failed = !answer);
  }

  // Asks prepare(), which says yes or no, or yes as long as tables are the same.
  bool prepared(bool& failed) {
    if (parts_.prepare.is_none()) return true;
    const Ref known = Ref::to(parts_.prepared.get());
    if (known && reinterpret_cast<Tables*>(known.get())->same()) return true;
    Ref answer(PyObject_CallNoArgs(parts_.prepare.get()));
    const int truth = answer ? PyObject_IsTrue(answer.get()) : -1;
    failed = truth < 0;
    if (truth > 0 && Py_TYPE(answer.get()) == Py_TYPE(parts_.tables.get()))
      parts_.prepared = std::move(answer);
    return truth > 0;
  }

  bool unchanged() const {
    if (!reinterpret_cast<Tables*>(parts_.tables.get())->same()) return false;
    for (const Weight& weight : parts_.weights)
      if (weight.kind.data_of(weight.host.get()) != weight.data) return false;
    return true;
  }

  // As constants.py computes it.
  uint64_t version() const {
    if (parts_.watched.empty()) return 0;
    uint64_t sum = 1;
    for (const Ref& ref : parts_.watched)
      sum += impl_at(ref.get(), tensor_offset)->version_counter().current_version();
    return sum;
  }

  bool compute() {
    *parts_.constants = version();
    try {
      for (const Result& result : parts_.results) {
        made_.push_back(at::detail::empty_strided_cpu(result.sizes, result.strides, result.dtype));
        data_.push_back(made_.back().unsafeGetTensorImpl()->mutable_data());
      }
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
      return false;
    }
    std::copy(data_.begin(), data_.end(), parts_.pointers);
    int64_t done;
    Py_BEGIN_ALLOW_THREADS
    done = parts_.run(parts_.loop, 0, parts_.iterations, 1, parts_.failure);
    Py_END_ALLOW_THREADS
    if (done == parts_.iterations) return true;
    // After its deadline the loop comes back for Python's signals; -1 is a failure.
    Ref number(PyLong_FromLongLong(done));
    return number && Ref(PyObject_CallOneArg(parts_.finish.get(), number.get()));
  }

  bool noted() {
    for (size_t i = 0; i < parts_.marks.size(); i += 3) {
      const Ref* mark = &parts_.marks[i];
      if (PyObject_SetAttr(mark[0].get(), mark[1].get(), mark[2].get()) < 0) return false;
    }
    if (parts_.pulse.buf != nullptr) ++*static_cast<uint64_t*>(parts_.pulse.buf);
    bool failed = false;
    return asked(parts_.after, failed) || !failed;
  }

  Ref wrapped(at::TensorBase& tensor) const {
    Ref object(THPVariable_Wrap(std::move(tensor)));
    if (object && PyObject_SetAttr(object.get(), backward_name, parts_.backward.get()) < 0)
      return Ref();
    return object;
  }

  PyObject* built() {
    if (parts_.how == ONE) return wrapped(made_[0]).give();
    const Py_ssize_t count = static_cast<Py_ssize_t>(made_.size());
    const bool tuple = parts_.how == TUPLE;
    Ref results(tuple ? PyTuple_New(count) : PyList_New(count));
    for (Py_ssize_t i = 0; results && i < count; ++i) {
      Ref object = wrapped(made_[i]);
      if (!object) return nullptr;
      if (tuple)
        PyTuple_SET_ITEM(results.get(), i, object.give());
      else
        PyList_SET_ITEM(results.get(), i, object.give());
    }
    if (!results || parts_.how != OTHER) return results.give();
    return PyObject_CallOneArg(parts_.build.get(), results.get());
  }

  Parts& parts_;
  std::optional<c10::InferenceMode> normal_;
  c10::SmallVector<void*, 8> data_;  // of the arguments, then of the results
  c10::SmallVector<at::TensorBase, 4> made_;
};

PyObject* lane_vectorcall(PyObject* self, PyObject* const* args, size_t count, PyObject* names) {
  Lane* lane = reinterpret_cast<Lane*>(self);
  if (PyVectorcall_NARGS(count) != 1 || names != nullptr) {
    PyErr_SetString(PyExc_TypeError, "a lane takes a tuple of arguments");
    return nullptr;
  }
  const Ref alive = Ref::to(self);  // a signal handler may drop it in the middle
  try {
    return Call(*lane->parts).run(args[0]);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

template <class Pointer>
bool read_address(PyObject* number, Pointer& into) {
  into = reinterpret_cast<Pointer>(PyLong_AsVoidPtr(number));
  if (into == nullptr && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a null pointer");
  return into != nullptr;
}

at::TensorImpl* checked_impl(PyObject* object) {
  at::TensorImpl* impl = impl_of(object);
  if (impl == nullptr) PyErr_SetString(PyExc_TypeError, "a tensor is needed");
  return impl;
}

bool read_arguments(PyObject* examples, Parts& parts) {
  Refs given;
  if (!take_all(examples, given)) return false;
  for (const Ref& ref : given) {
    const at::TensorImpl* impl = checked_impl(ref.get());
    if (impl == nullptr) return false;
    Kind& kind = parts.arguments.emplace_back(Py_TYPE(ref.get()), impl);
    const c10::InferenceMode inference;  // tensors made there are as good
    kind.other_keys = at::detail::empty_cpu({1}, kind.dtype.toScalarType()).key_set();
    parts.inference_modes = c10::impl::raw_local_dispatch_key_set;
  }
  return true;
}

bool read_weights(PyObject* hosts, Parts& parts) {
  Refs given;
  if (!take_all(hosts, given)) return false;
  for (Ref& ref : given) {
    at::TensorImpl* impl = checked_impl(ref.get());
    if (impl == nullptr) return false;
    Kind kind(Py_TYPE(ref.get()), impl);
    void* data = impl->numel() == 0 ? nullptr : kind.data_of(ref.get());
    if (data == nullptr) {
      PyErr_SetString(PyExc_ValueError, "a weight without memory");
      return false;
    }
    parts.weights.push_back({std::move(ref), std::move(kind), data});
  }
  return true;
}

bool read_watched(PyObject* tensors, Parts& parts) {
  if (!take_all(tensors, parts.watched)) return false;
  for (const Ref& ref : parts.watched)
    if (checked_impl(ref.get()) == nullptr) return false;
  return true;
}

bool read_results(PyObject* examples, Parts& parts) {
  Refs given;
  if (!take_all(examples, given)) return false;
  for (const Ref& ref : given) {
    const at::TensorImpl* impl = checked_impl(ref.get());
    if (impl == nullptr) return false;
    parts.results.push_back({impl->sizes().vec(), impl->strides().vec(), impl->dtype().toScalarType()});
  }
  return true;
}

bool read_build(PyObject* build, Parts& parts) {
  if (build == Py_None)
    parts.how = parts.results.size() == 1 ? ONE : OTHER;
  else if (build == reinterpret_cast<PyObject*>(&PyTuple_Type))
    parts.how = TUPLE;
  else if (build == reinterpret_cast<PyObject*>(&PyList_Type))
    parts.how = LIST;
  parts.build = Ref::to(build);
  if (parts.how != OTHER || PyCallable_Check(build)) return true;
  PyErr_SetString(PyExc_TypeError, "no way to build the result");
  return false;
}

bool are_tables(PyObject* tables, PyObject* links, PyTypeObject* type) {
  PyObject* own = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "tables_type");
  const Ref kept(own);
  if (own == nullptr) return false;
  if (Py_TYPE(tables) == reinterpret_cast<PyTypeObject*>(own) && PyDict_Check(links)) return true;
  PyErr_SetString(PyExc_TypeError, "tables of this module and a dict of links are needed");
  return false;
}

PyObject* lane_new(PyTypeObject* type, PyObject* args, PyObject* named) {
  static const char* names[] = {
      "run",    "loop",   "failure", "iterations", "pointers", "arguments", "weights",
      "results", "miss",  "tables",  "links",      "link",     "pull",      "prepare",
      "finish", "after",     "backward", "build",     "marks",
      "pulse",  "constants", "watched",  nullptr};
  PyObject *run, *loop, *failure, *pointers, *arguments, *weights, *results, *build, *marks, *pulse;
  PyObject *miss, *tables, *links, *link, *pull, *prepare, *finish, *after,
      *backward, *constants, *watched;
  long long iterations;
  if (!PyArg_ParseTupleAndKeywords(args, named, "OOOLOOOOOOOOOOOOOOOOOO", const_cast<char**>(names),
                                   &run, &loop, &failure, &iterations, &pointers, &arguments,
                                   &weights, &results, &miss, &tables, &links, &link, &pull,
                                   &prepare, &finish, &after, &backward, &build,
                                   &marks, &pulse, &constants, &watched))
    return nullptr;
  Ref made(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  Lane* lane = reinterpret_cast<Lane*>(made.get());
  lane->call = lane_vectorcall;
  Parts& parts = *(lane->parts = new Parts);
  parts.iterations = iterations;
  parts.modes = parts.inference_modes = c10::impl::raw_local_dispatch_key_set;
  if (!read_address(run, parts.run) || !read_address(loop, parts.loop) ||
      !read_address(failure, parts.failure) || !read_address(pointers, parts.pointers) ||
      !read_arguments(arguments, parts) || !read_weights(weights, parts) ||
      !read_address(constants, parts.constants) || !read_watched(watched, parts) ||
      !read_results(results, parts) || !read_build(build, parts) ||
      !are_tables(tables, links, type) || !take_all(marks, parts.marks))
    return nullptr;
  if (pulse != Py_None && PyObject_GetBuffer(pulse, &parts.pulse, PyBUF_WRITABLE) < 0)
    return nullptr;
  const std::pair<Ref*, PyObject*> objects[] = {
      {&parts.miss, miss},       {&parts.tables, tables},   {&parts.links, links},
      {&parts.link, link},       {&parts.pull, pull},       {&parts.prepare, prepare},
      {&parts.finish, finish},   {&parts.after, after},     {&parts.backward, backward}};
  for (const auto& [place, object] : objects) *place = Ref::to(object);
  return made.give();
}

int lane_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  const Parts* parts = reinterpret_cast<Lane*>(self)->parts;
  return parts == nullptr ? 0 : parts->visit(visit, arg);
}

// There is no clear: a lane refers to nothing that refers to it but dicts, which can be cleared.
void lane_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  delete std::exchange(reinterpret_cast<Lane*>(self)->parts, nullptr);
  type->tp_free(self);
  Py_DECREF(type);
}

// ---- The module ---------------------------------------------------------------------------------

// find_tensor(tensor, address): `address` is of a C++ tensor that shares the object's memory. The
// word it consists of is looked for in the object, whose size is known.
PyObject* find_tensor(PyObject*, PyObject* args) {
  PyObject *type, *object, *number;
  if (!PyArg_ParseTuple(args, "O!OO", &PyType_Type, &type, &object, &number)) return nullptr;
  at::TensorImpl** known;
  if (!read_address(number, known)) return nullptr;
  auto* base = reinterpret_cast<PyTypeObject*>(type);
  Py_ssize_t found = 0, count = 0;
  if (PyObject_TypeCheck(object, base))
    for (Py_ssize_t at = sizeof(PyObject); at + 8 <= base->tp_basicsize; at += 8)
      if (impl_at(object, at) == *known) found = at, ++count;
  if (count != 1 || (tensor_offset != 0 && found != tensor_offset)) {
    PyErr_SetString(PyExc_RuntimeError, "a tensor's object is not laid out as expected");
    return nullptr;
  }
  tensor_offset = found;
  tensor_type = base;
  Py_INCREF(type);
  Py_RETURN_NONE;
}

PyType_Slot tables_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(tables_new)},
    {Py_tp_call, reinterpret_cast<void*>(tables_call)},
    {Py_tp_traverse, reinterpret_cast<void*>(tables_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(tables_clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(tables_dealloc)},
    {0, nullptr}};
PyType_Spec tables_spec = {"pantile_lane.Tables", sizeof(Tables), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, tables_slots};

PyMemberDef lane_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Lane, call), READONLY, nullptr}, {}};
PyType_Slot lane_slots[] = {{Py_tp_new, reinterpret_cast<void*>(lane_new)},
                            {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                            {Py_tp_traverse, reinterpret_cast<void*>(lane_traverse)},
                            {Py_tp_dealloc, reinterpret_cast<void*>(lane_dealloc)},
                            {Py_tp_members, lane_members},
                            {0, nullptr}};
PyType_Spec lane_spec = {"pantile_lane.Lane", sizeof(Lane), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
                         lane_slots};

PyMethodDef methods[] = {{"find_tensor", find_tensor, METH_VARARGS, nullptr}, {}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "pantile_lane", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit_pantile_lane() {
  Ref module(PyModule_Create(&definition));
  Ref tables(PyType_FromSpec(&tables_spec));
  Ref lane(PyType_FromSpec(&lane_spec));
  backward_name = PyUnicode_InternFromString("backward");
  if (!module || !tables || !lane || backward_name == nullptr) return nullptr;
  // The type a lane wants its tables to be of. Heap types without Py_TPFLAGS_IMMUTABLETYPE take it.
  if (PyObject_SetAttrString(lane.get(), "tables_type", tables.get()) < 0) return nullptr;
  if (PyModule_AddObjectRef(module.get(), "Tables", tables.get()) < 0 ||
      PyModule_AddObjectRef(module.get(), "Lane", lane.get()) < 0)
    return nullptr;
  return module.give();
}
