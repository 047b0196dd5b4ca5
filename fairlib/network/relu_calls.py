"""Call sites: which ReLUs run in a forward pass, and a module of its own for each call.

A ReLU can be a module that is called once, a module that is called several times, or a function.
Only the first can be replaced from outside. The others are split: the module that makes the calls
gets a forward method from its ``torch.fx`` graph, in which every call is that of a new submodule.
Everything else stays: its class is a base class of the new one, and parameters, buffers,
submodules, attributes and hooks are the same objects.
"""

import copy
import importlib
import inspect
import types
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node, Tracer
from torch.nn.functional import relu, relu6
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

RELUS = (nn.ReLU, nn.ReLU6, nn.LeakyReLU)
"""The modules that count as ReLUs."""

# Functions and names of methods, as torch.fx shows them, and the module that does the same.
_MODULES: dict[Any, type[nn.Module]] = dict.fromkeys(
    (torch.relu, torch.relu_, relu, "relu", "relu_"), nn.ReLU
) | {relu6: nn.ReLU6}

# Operators by name, without the underscore of those that work in place.
_RELU_OPERATORS = {"relu", "leaky_relu", "hardtanh"}
_CLAMPS = {"clamp", "clamp_min"}
_OTHERS = {
    "addmm_activation",
    "celu",
    "cudnn_rnn",
    "elu",
    "erf",
    "gelu",
    "glu",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "log_sigmoid_forward",
    "miopen_rnn",
    "mish",
    "mkldnn_rnn_layer",
    "prelu_kernel",
    "rrelu_with_noise",
    "sigmoid",
    "silu",
    "softplus",
    "softshrink",
    "tanh",
    "thnn_fused_gru_cell",
    "thnn_fused_lstm_cell",
    "threshold",
    "transformer_encoder_layer_fwd",
}

# Comparisons of numbers with each other, by which an activation can be written. Those of
# activations count, which come from the inputs and from parameters: masks of padding, clamped
# weights and bounds that only guard a division do not.
_COMPARISONS = _CLAMPS | {"clamp_max", "fmax", "fmin", "ge", "gt", "le", "lt"}
_COMPARISONS |= {"maximum", "minimum", "sign"}
_GUARD = 1e-3
_TESTS = {"eq", "ne"}

_INPUTS, _PARAMETERS, _ABSOLUTE, _RECTIFIED = 1, 2, 4, 8
_ACTIVATION = _INPUTS | _PARAMETERS


@dataclass(frozen=True)
class Call:
    """A call of a ReLU module in a forward pass.

    Attributes:
        name: Name of the ReLU module.
        caller: Name of the module that called it.
        shape: Shape of its output without the batch.
    """

    name: str
    caller: str
    shape: tuple[int, ...]


class Seen(TorchDispatchMode):
    """The ReLUs of a forward pass, in order; as a context in which the model is run.

    Hooks on the modules tell which of them is running. Functions have no hooks: those are seen as
    the operators that reach torch's dispatcher, whatever Python wrote them as.

    Attributes:
        calls: Calls of ReLU modules.
        functions: Names of the modules that computed a ReLU by a function.
    """

    def __init__(self, model: nn.Module, inputs: Tensor):
        super().__init__()
        # The tensors are held: one that was freed could hand its identity to a later one.
        self.origins: dict[int, tuple[Any, int]] = {id(inputs): (inputs, _INPUTS)}
        self.calls: list[Call] = []
        self.functions: list[str] = []
        self.samples, self.stack = len(inputs), [("", model)]

    def enter(self, name: str, module: nn.Module, _: object) -> None:
        self.stack.append((name, module))

    def leave(self, module: nn.Module, _: object, output: Tensor) -> None:
        name, _ = self.stack.pop()
        if not isinstance(module, RELUS):
            return
        if len(output) != self.samples:
            raise ValueError(
                f"{name} gives {tuple(output.shape)} for a batch of {self.samples}: ReLUs can be "
                "counted only where the first dimension is that of the samples"
            )
        self.calls.append(Call(name, self.stack[-1][0], tuple(output.shape[1:])))

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        (name, module), settings = self.stack[-1], kwargs or {}
        operator = str(function.overloadpacket).removeprefix("aten.").strip("_")
        origin = reduce(or_, map(self._origin, tree_leaves((args, settings))), 0)
        if not isinstance(module, RELUS):
            low = args[1] if len(args) > 1 else settings.get("min")
            if operator in _CLAMPS and isinstance(low, Tensor) and low.numel() == 1:
                low = low.item()
            clamps = operator in _CLAMPS and isinstance(low, int | float)
            guards = clamps and 0 < low <= _GUARD and len(args) < 3 and settings.get("max") is None
            # An absolute value compares with zero, unless it only tests for infinite numbers. One
            # number of a whole batch decides between branches.
            compares = origin & _ABSOLUTE or (operator in _COMPARISONS and not guards)
            compares = compares and origin & _ACTIVATION == _ACTIVATION
            compares = compares and operator not in _TESTS and getattr(args[0], "ndim", 1)
            if (clamps and low == 0) or operator in _RELU_OPERATORS:
                self.functions.append(name)
            elif operator in _OTHERS or compares:
                kinds = ", ".join(kind.__name__ for kind in RELUS)
                operator = "abs" if origin & _ABSOLUTE else operator
                raise ValueError(
                    f"{_described(name, module)} computes {operator}, which is no ReLU and can be "
                    f"neither gated nor counted; ReLUs are {kinds}"
                )
        output = function(*args, **settings)
        if operator == "abs" and origin == _ACTIVATION:
            origin |= _ABSOLUTE
        # The absolute value of what a ReLU gives is that itself.
        origin = origin & ~_RECTIFIED | _RECTIFIED * isinstance(module, nn.ReLU | nn.ReLU6)
        origin *= operator not in _TESTS
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor):
                self.origins[id(tensor)] = tensor, origin
        return output

    def _origin(self, argument: Any) -> int:
        """Tell what an argument comes from."""
        parameter = _PARAMETERS if isinstance(argument, nn.Parameter) else 0
        return self.origins.get(id(argument), (argument, parameter))[1]

    def repeated(self) -> dict[str, int]:
        """Count the calls of the modules that were called more than once, by name."""
        times = Counter(call.name for call in self.calls)
        return {name: count for name, count in times.items() if count > 1}

    def to_split(self) -> list[str]:
        """Name the modules that call a function, or a repeated ReLU module; inner ones first."""
        repeated = self.repeated()
        callers = {call.caller for call in self.calls if call.name in repeated}
        return sorted(callers.union(self.functions), key=_innermost_first)


def watch(model: nn.Module, inputs: Tensor) -> Seen:
    """Run a model, in the mode that it is in, and note its ReLUs.

    Products of activations, maxima over an axis and operators of other libraries can be one unseen.

    Raises:
        ValueError: If an activation is no ReLU, the model does not take such inputs or gives no
            tensor, or a ReLU's output does not have the samples in its first dimension.
    """
    seen, handles = Seen(model, inputs), []
    for name, module in model.named_modules():
        enter = partial(seen.enter, name)
        handles += [
            module.register_forward_pre_hook(enter),
            module.register_forward_hook(seen.leave),
        ]
    try:
        with torch.no_grad(), seen:
            outputs = model(inputs)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"{type(model).__name__} does not take inputs {tuple(inputs.shape)} "
            f"({type(error).__name__}: {error})"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    if not isinstance(outputs, Tensor):
        raise ValueError(
            f"{type(model).__name__} gives a {type(outputs).__name__}, where logits are needed"
        )
    return seen


def split(model: nn.Module, caller: str) -> None:
    """Give every ReLU that a module of the model calls a submodule of its own, in place.

    Args:
        model: A model in eval mode.
        caller: Name of the module that calls the ReLUs.

    Raises:
        ValueError: If ``torch.fx`` cannot trace the module, or it does something else in training
            than in evaluation; the message names it, with the fix.
    """
    module = model.get_submodule(caller)
    graph = _graph(module, _described(caller, module))
    used: set[str] = set()
    for node in list(graph.nodes):
        activation = _activation_of(node, module)
        if activation is not None:
            name = _name_for(node, module, used)
            module._modules[name] = activation
            used.add(name)
            with graph.inserting_before(node):
                call = graph.call_module(name, (node.all_input_nodes[0],))
            node.replace_all_uses_with(call)
            graph.erase_node(node)
    code = graph.python_code("self")
    # Modules among the global names of the source cannot be pickled, but named.
    modules = {
        key: value.__name__
        for key, value in code.globals.items()
        if isinstance(value, types.ModuleType)
    }
    values = {key: value for key, value in code.globals.items() if key not in modules}
    module.__class__ = _with_forward(type(module), code.src, values, modules)


def refuse_unsplit(model: nn.Module, seen: Seen) -> None:
    """Refuse a model that splitting has left with ReLUs that are no module with one call.

    Args:
        model: The model after splitting.
        seen: Its ReLUs, as :func:`watch` returns them.

    Raises:
        ValueError: If there is one; the message names it, with the fix.
    """
    for name in seen.functions:
        kinds = ", ".join(f"nn.{kind.__name__}" for kind in RELUS)
        raise ValueError(
            f"{_described(name, model.get_submodule(name))} computes a ReLU by a function that "
            f"cannot be swapped; make one of {kinds} in its __init__ and call that"
        )
    for name, times in seen.repeated().items():
        raise ValueError(
            f"{name} is called {times} times, since the module around it is; give each call its "
            "own module"
        )


def _innermost_first(name: str) -> tuple[int, str]:
    # The forward method of an outer module calls the inner ones, which must be as they will be.
    return (-len(name.split(".")) if name else 0, name)


def _described(name: str, module: nn.Module) -> str:
    return f"{name or 'the model'} ({type(module).__name__})"


class _Shallow(Tracer):
    """Traces the forward method of one module, and calls its submodules as they are."""

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return True


def _graph(module: nn.Module, description: str) -> Graph:
    """Trace a module in eval mode, and refuse it if training would give another graph."""
    why = f"{description} calls ReLUs as functions or one nn.ReLU several times"
    fix = "give every call an nn.ReLU of its own in its __init__"
    twin = copy.deepcopy(module).train()
    try:
        graph, training = _trace(module), _trace(twin)
    except Exception as error:  # The forward method of a user may raise anything.
        raise ValueError(
            f"{why}, and torch.fx cannot trace it ({type(error).__name__}: {error}); {fix}"
        ) from error
    # A graph has the training flag of its tracing written into it, as a number or as a constant
    # tensor: the module would keep the dropout of evaluation, which is none, in training.
    same = str(graph) == str(training) and all(
        torch.equal(getattr(module, node.target), getattr(twin, node.target))
        for node in graph.nodes
        if node.op == "get_attr" and "_constant" in node.target
    )
    if not same:
        raise ValueError(
            f"{why}, and does something else in training than in evaluation, which no graph can "
            f"do; {fix}"
        )
    return graph


def _trace(module: nn.Module) -> Graph:
    # Optional inputs are traced as None: as symbols, every "if mask is not None" would be taken.
    parameters = inspect.signature(module.forward).parameters
    absent = {name: None for name, value in parameters.items() if value.default is None}
    return _Shallow().trace(module, absent)


def _activation_of(node: Node, module: nn.Module) -> nn.Module | None:
    """Make a new ReLU for a node that calls one; None for other nodes."""
    if node.op == "call_module":
        called = module.get_submodule(str(node.target))
        return copy.deepcopy(called) if isinstance(called, RELUS) else None
    kind = _MODULES.get(node.target) if node.op in ("call_function", "call_method") else None
    return kind() if kind else None


def _name_for(node: Node, module: nn.Module, used: set[str]) -> str:
    """Keep the name of a ReLU module for its first call here; else number it until it is free."""
    is_module = node.op == "call_module"
    wanted = str(node.target).replace(".", "_") if is_module else "relu"
    if is_module and wanted in module._modules and wanted not in used:
        return wanted
    name, number = wanted, 1
    while hasattr(module, name):
        number += 1
        name = f"{wanted}_{number}"
    return name


def _with_forward(
    base: type[nn.Module], source: str, values: dict[str, Any], modules: Mapping[str, str]
) -> type[nn.Module]:
    """Derive a class with another forward method, whose objects can be copied and pickled.

    Args:
        base: Class of the module.
        source: Source of the forward method.
        values: Its global names, without modules.
        modules: Its global names of modules, and the names to import them by.
    """
    scope = values | {name: importlib.import_module(module) for name, module in modules.items()}
    exec(source, scope)

    # Pickle finds classes by import, and this one has no place to be imported from: an object is
    # rebuilt from the source.
    def reduce(self: nn.Module, protocol: int) -> tuple:
        return _rebuild, (base, source, values, modules), self.__dict__

    members = {"forward": scope["forward"], "__reduce_ex__": reduce, "__module__": base.__module__}
    return type(base.__name__, (base,), members | {"__doc__": base.__doc__})


def _rebuild(*derivation: Any) -> nn.Module:
    kind = _with_forward(*derivation)
    return kind.__new__(kind)
