"""Call sites: which ReLUs run in a forward pass, and a module of its own for each call.

A ReLU can be a module that is called once, a module that is called several times, or a function.
Only the first can be replaced from outside. The others are split: the module that makes the calls
gets a forward method from its ``torch.fx`` graph, in which every call is that of a new submodule.
All else stays: its class is a base class of the new one, and parameters, buffers, submodules,
attributes and hooks are its own."""

import copy
import importlib
import inspect
import itertools
import types
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node, Tracer
from torch.nn.functional import relu, relu6
from torch.utils._python_dispatch import TorchDispatchMode

RELUS = (nn.ReLU, nn.ReLU6, nn.LeakyReLU)
"""The modules that count as ReLUs."""

_NO_ACTIVATIONS = (nn.Softmax, nn.Softmax2d, nn.LogSoftmax, nn.Softmin, nn.MultiheadAttention)

# Functions and methods, as torch's tracer shows them, and the module that does the same.
_MODULES: dict[Any, type[nn.Module]] = {
    torch.relu: nn.ReLU,
    torch.relu_: nn.ReLU,
    relu: nn.ReLU,
    relu6: nn.ReLU6,
}
_MODULES |= {"relu": nn.ReLU, "relu_": nn.ReLU}

# Operators by name, without the underscore of those that work in place.
_RELU_OPERATORS = {"relu", "leaky_relu", "hardtanh"}
_CLAMPS = {"clamp", "clamp_min"}
_OTHERS = {
    "elu",
    "gelu",
    "glu",
    "hardsigmoid",
    "hardswish",
    "mish",
    "prelu_kernel",
    "rrelu_with_noise",
    "hardshrink",
}
_OTHERS |= {"sigmoid", "silu", "softplus", "tanh", "threshold", "log_sigmoid_forward", "softshrink"}


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


@dataclass
class Seen:
    """The ReLUs of a forward pass, in order.

    Attributes:
        calls: Calls of ReLU modules.
        functions: Names of the modules that computed a ReLU by a function.
    """

    calls: list[Call] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)

    def repeated(self) -> list[Call]:
        """List the calls of modules that were called more than once."""
        times = Counter(call.name for call in self.calls)
        return [call for call in self.calls if times[call.name] > 1]

    def to_split(self) -> list[str]:
        """Name the modules that call a function, or a ReLU module that is called more than once;
        inner ones first."""
        callers = {*self.functions, *(call.caller for call in self.repeated())}
        return sorted(callers, key=lambda name: (-name.count(".") - bool(name), name))


def watch(model: nn.Module, inputs: Tensor) -> Seen:
    """Run a model, in the mode that it is in, and note its ReLUs.

    Products, ``torch.where`` and ``torch.maximum`` can compute a ReLU unseen.

    Raises:
        ValueError: If an activation is no ReLU, the model does not take such inputs or gives no
            tensor, or a ReLU's output does not have the samples in its first dimension.
    """
    operators, handles = _Operators(model), []

    def leave(module: nn.Module, _: object, output: Tensor) -> None:
        name, _ = operators.stack.pop()
        if not isinstance(module, RELUS):
            return
        if len(output) != len(inputs):
            raise ValueError(
                f"{name} gives {tuple(output.shape)} for a batch of {len(inputs)}: ReLUs can be counted only where the "
                "first dimension is that of the samples"
            )
        operators.seen.calls.append(Call(name, operators.stack[-1][0], tuple(output.shape[1:])))

    for name, module in model.named_modules():
        kind = type(module)
        is_activation = kind.__module__ == "torch.nn.modules.activation" and not isinstance(
            module, _NO_ACTIVATIONS
        )
        if is_activation and not isinstance(module, RELUS):
            raise ValueError(_no_relu(f"{name or 'the model'} is a {kind.__name__}"))
        enter = partial(operators.enter, name)
        handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        with torch.no_grad(), operators:
            outputs = model(inputs)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"{type(model).__name__} does not take inputs {tuple(inputs.shape)} ({type(error).__name__}: {error})"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    if not isinstance(outputs, Tensor):
        raise ValueError(
            f"{type(model).__name__} gives a {type(outputs).__name__}, where logits are needed"
        )
    return operators.seen


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
    graph = _graph(module, _named(caller, module))
    used: set[str] = set()
    for node in list(graph.nodes):
        activation = _activation_of(node, module)
        if activation is None:
            continue
        name = _name_for(node, module, used)
        module._modules[name] = activation
        used.add(name)
        with graph.inserting_before(node):
            node.replace_all_uses_with(graph.call_module(name, (node.all_input_nodes[0],)))
        graph.erase_node(node)
    code = graph.python_code("self")
    module.__class__ = _with_forward(type(module), code.src, code.globals)


def refuse_unsplit(model: nn.Module, seen: Seen) -> None:
    """Refuse a model that splitting has left with ReLUs that are no module with one call.

    Args:
        model: The model after splitting.
        seen: What :func:`watch` saw of it.

    Raises:
        ValueError: If there is one; the message names it, with the fix.
    """
    for name in seen.functions:
        raise ValueError(
            f"{_named(name, model.get_submodule(name))} computes a ReLU by a function that cannot be swapped; make one "
            f"of {', '.join(f'nn.{kind.__name__}' for kind in RELUS)} in its __init__ and call that"
        )
    for name, times in Counter(call.name for call in seen.repeated()).items():
        raise ValueError(
            f"{name} is called {times} times, since the module around it is; give each call its own module"
        )


def _named(name: str, module: nn.Module) -> str:
    return f"{name or 'the model'} ({type(module).__name__})"


def _no_relu(found: str) -> str:
    kinds = ", ".join(kind.__name__ for kind in RELUS)
    return f"{found}, which is no ReLU and can be neither gated nor counted; ReLUs are {kinds}"


class _Operators(TorchDispatchMode):
    """Notes which module computes a ReLU that is no module, and refuses other activations."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.seen, self.stack = Seen(), [("", model)]

    def enter(self, name: str, module: nn.Module, _: object) -> None:
        self.stack.append((name, module))

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name, module = self.stack[-1]
        operator, settings = (
            str(function.overloadpacket).removeprefix("aten.").strip("_"),
            kwargs or {},
        )
        if not isinstance(module, RELUS):
            if operator in _RELU_OPERATORS or (
                operator in _CLAMPS and _clamps_at_zero(args, settings)
            ):
                self.seen.functions.append(name)
            elif operator in _OTHERS:
                raise ValueError(_no_relu(f"{_named(name, module)} computes {operator}"))
        return function(*args, **settings)


def _clamps_at_zero(args: tuple, kwargs: Mapping[str, Any]) -> bool:
    low = args[1] if len(args) > 1 else kwargs.get("min")
    return isinstance(low, int | float) and low == 0


class _Shallow(Tracer):
    """Traces one module, without what is below."""

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return True


def _graph(module: nn.Module, own: str) -> Graph:
    """The graph of a module in eval mode, which is the same in training."""
    why = f"{own} calls ReLUs as functions or one nn.ReLU several times"
    fix = "give every call an nn.ReLU of its own in its __init__"
    twin = copy.deepcopy(module).train()
    try:
        graph, training = _trace(module), _trace(twin)
    except Exception as error:
        raise ValueError(
            f"{why}, and torch.fx cannot trace it ({type(error).__name__}: {error}); {fix}"
        ) from error
    constants = [
        str(node.target)
        for node in graph.nodes
        if node.op == "get_attr" and "_constant" in node.target
    ]
    same = str(graph) == str(training)
    if not (
        same and all(torch.equal(getattr(module, name), getattr(twin, name)) for name in constants)
    ):
        raise ValueError(
            f"{why}, and does something else in training than in evaluation, which no graph can do; {fix}"
        )
    return graph


def _trace(module: nn.Module) -> Graph:
    parameters = inspect.signature(module.forward).parameters
    return _Shallow().trace(
        module, {name: None for name, value in parameters.items() if value.default is None}
    )


def _activation_of(node: Node, module: nn.Module) -> nn.Module | None:
    """A ReLU of its own for a node that calls one; None for other nodes."""
    if node.op == "call_module":
        called = module.get_submodule(str(node.target))
        return copy.deepcopy(called) if isinstance(called, RELUS) else None
    kind = _MODULES.get(node.target) if node.op in ("call_function", "call_method") else None
    return kind() if kind else None


def _name_for(node: Node, module: nn.Module, used: set[str]) -> str:
    """The name of the ReLU that is called, for its first call here; then the name with a number."""
    wanted = str(node.target).replace(".", "_") if node.op == "call_module" else "relu"
    if node.op == "call_module" and wanted in module._modules and wanted not in used:
        return wanted
    numbered = (f"{wanted}_{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([wanted], numbered) if not hasattr(module, name))


def _with_forward(base: type[nn.Module], source: str, names: Mapping[str, Any]) -> type[nn.Module]:
    """A subclass with another forward method, which can be copied and pickled although nobody can
    import it."""
    scope = dict(names)
    exec(source, scope)

    def reduce(self: nn.Module, protocol: int) -> tuple:
        modules = {
            key: value.__name__
            for key, value in names.items()
            if isinstance(value, types.ModuleType)
        }
        others = {key: value for key, value in names.items() if key not in modules}
        return _rebuild, (base, source, others, modules), self.__dict__

    members = {"forward": scope["forward"], "__reduce_ex__": reduce, "__module__": base.__module__}
    return type(base.__name__, (base,), members | {"__doc__": base.__doc__})


def _rebuild(
    base: type[nn.Module], source: str, others: Mapping[str, Any], modules: Mapping[str, str]
) -> nn.Module:
    names = dict(others) | {key: importlib.import_module(name) for key, name in modules.items()}
    kind = _with_forward(base, source, names)
    return kind.__new__(kind)
