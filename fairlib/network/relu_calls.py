"""Call sites: which ReLUs run in a forward pass, and a module of its own for each call.

A ReLU can be a module that is called once, a module that is called several times, or a function. Only the first can be
replaced from outside. The others are split: the module that makes the calls gets a forward method from its
``torch.fx`` graph, in which every call is that of a new submodule. All else stays: its class is a base class of the new
one, and parameters, buffers, submodules, attributes and hooks are its own.
"""

import copy
import inspect
import types
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node, Tracer
from torch.nn.functional import relu, relu6
from torch.utils._python_dispatch import TorchDispatchMode

RELUS = (nn.ReLU, nn.ReLU6, nn.LeakyReLU)
"""The modules that count as ReLUs."""

_NO_ACTIVATIONS = (nn.Softmax, nn.Softmax2d, nn.LogSoftmax, nn.Softmin, nn.MultiheadAttention)

# What torch's tracer shows where a function or a method is called, and the module that does the same.
_FUNCTIONS = {torch.relu: nn.ReLU, torch.relu_: nn.ReLU, relu: nn.ReLU, relu6: nn.ReLU6}
_METHODS = {"relu": nn.ReLU, "relu_": nn.ReLU}

_aten = torch.ops.aten
_RELU_OPERATORS = {_aten.relu, _aten.relu_, _aten.leaky_relu, _aten.leaky_relu_, _aten.hardtanh, _aten.hardtanh_}
_CLAMPS = {_aten.clamp, _aten.clamp_, _aten.clamp_min, _aten.clamp_min_}
_OTHER_OPERATORS = {
    *(_aten.elu, _aten.elu_, _aten.gelu, _aten.gelu_, _aten.glu, _aten.hardsigmoid, _aten.hardsigmoid_),
    *(_aten.hardswish, _aten.hardswish_, _aten.mish, _aten.mish_, _aten._prelu_kernel, _aten.rrelu_with_noise),
    *(_aten.sigmoid, _aten.sigmoid_, _aten.silu, _aten.silu_, _aten.softplus, _aten.tanh, _aten.tanh_),
    *(_aten.threshold, _aten.threshold_, _aten.log_sigmoid_forward, _aten.softshrink, _aten.hardshrink),
}


@dataclass(frozen=True)
class Call:
    """A ReLU module was called: its name, the name of the module that called it, the shape of its output."""

    name: str
    caller: str
    shape: tuple[int, ...]


@dataclass
class Seen:
    """What happened in a forward pass, in order.

    Attributes:
        calls: Of ReLU modules.
        functions: Names of the modules that computed a ReLU by a function.
        others: Names of modules and of the other activations that they computed by a function.
    """

    calls: list[Call] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    others: list[tuple[str, str]] = field(default_factory=list)

    def repeated(self) -> list[Call]:
        """The calls of modules that were called more than once."""
        times = Counter(call.name for call in self.calls)
        return [call for call in self.calls if times[call.name] > 1]

    def to_split(self) -> list[str]:
        """The modules that call a function, or a ReLU module that is called more than once; inner ones first."""
        callers = {*self.functions, *(call.caller for call in self.repeated())}
        return sorted(callers, key=lambda name: (-name.count(".") - bool(name), name))


def watch(model: nn.Module, inputs: Tensor) -> Seen:
    """Run a model, in the mode that it is in, and note its ReLUs.

    Products, ``torch.where`` and ``torch.maximum`` can compute a ReLU unseen.

    Raises:
        ValueError: If an activation is no ReLU, the model does not take such inputs or gives no tensor, or a ReLU's
            output does not have the samples in its first dimension.
    """
    seen, stack = Seen(), [("", model)]
    handles = []

    def enter(name: str):
        return lambda module, _: stack.append((name, module))

    def leave(module: nn.Module, _: object, output: object) -> None:
        name, _ = stack.pop()
        if not isinstance(module, RELUS):
            return
        if len(output) != len(inputs):
            raise ValueError(
                f"{name} gives {tuple(output.shape)} for a batch of {len(inputs)}: only ReLUs whose first dimension is "
                "that of the samples can be counted"
            )
        seen.calls.append(Call(name, stack[-1][0], tuple(output.shape[1:])))

    for name, module in model.named_modules():
        _refuse_activation(name, module)
        handles += [module.register_forward_pre_hook(enter(name)), module.register_forward_hook(leave)]
    try:
        with torch.no_grad(), _Functions(stack, seen):
            outputs = model(inputs)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"{type(model).__name__} does not take inputs {tuple(inputs.shape)} ({type(error).__name__}: {error})"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    if not isinstance(outputs, Tensor):
        raise ValueError(f"{type(model).__name__} gives a {type(outputs).__name__}, where logits are needed")
    for name, operator in seen.others:
        raise ValueError(
            f"{name or 'the model'} ({type(model.get_submodule(name)).__name__}) computes {operator}, which is no "
            "ReLU: it would need a protocol of its own, and can be neither gated nor counted"
        )
    return seen


def split(model: nn.Module, caller: str) -> None:
    """Give every ReLU that a module of the model calls a submodule of its own, in place.

    Raises:
        ValueError: If ``torch.fx`` cannot trace the module, or it does something else in training than in evaluation;
            the message names it, with the fix.
    """
    module = model.get_submodule(caller)
    graph = _graph(module, f"{caller or 'the model'} ({type(module).__name__})")
    used: set[str] = set()
    for node in list(graph.nodes):
        activation = _activation_of(node, module)
        if activation is None:
            continue
        name = _name_for(node, module, used)
        module._modules[name] = activation
        used.add(name)
        with graph.inserting_before(node):
            replacement = graph.call_module(name, (node.all_input_nodes[0],))
        node.replace_all_uses_with(replacement)
        graph.erase_node(node)
    code = graph.python_code("self")
    module.__class__ = _with_forward(type(module), code.src, code.globals)


def refuse_unsplit(model: nn.Module, seen: Seen) -> None:
    """After splitting: refuse what is still no ReLU module of its own.

    Raises:
        ValueError: Naming the module, with the fix.
    """
    if seen.functions:
        name = seen.functions[0]
        raise ValueError(
            f"{name or 'the model'} ({type(model.get_submodule(name)).__name__}) computes a ReLU by a function that "
            f"cannot be swapped; make it a module, made in its __init__: {', '.join(f'nn.{k.__name__}' for k in RELUS)}"
        )
    repeated = seen.repeated()
    if repeated:
        name = repeated[0].name
        raise ValueError(
            f"{name} is called {sum(call.name == name for call in repeated)} times in a forward pass, since the module "
            "around it is; give every call a module of its own"
        )


def _refuse_activation(name: str, module: nn.Module) -> None:
    kind = type(module)
    is_activation = kind.__module__ == "torch.nn.modules.activation" and not isinstance(module, _NO_ACTIVATIONS)
    if is_activation and not isinstance(module, RELUS):
        raise ValueError(
            f"{name or 'the model'} is a {kind.__name__}, which is no ReLU: it would need a protocol of its own, and "
            f"can be neither gated nor counted; ReLUs are {', '.join(kind.__name__ for kind in RELUS)}"
        )


class _Functions(TorchDispatchMode):
    """Notes which module computes an activation that is no module."""

    def __init__(self, stack: list[tuple[str, nn.Module]], seen: Seen):
        super().__init__()
        self.stack, self.seen = stack, seen

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name, module = self.stack[-1]
        packet = function.overloadpacket
        if not isinstance(module, RELUS):
            if packet in _RELU_OPERATORS or (packet in _CLAMPS and _clamps_at_zero(args, kwargs or {})):
                self.seen.functions.append(name)
            elif packet in _OTHER_OPERATORS:
                self.seen.others.append((name, str(packet).removeprefix("aten.").strip("_")))
        return function(*args, **(kwargs or {}))


def _clamps_at_zero(args: tuple, kwargs: Mapping[str, Any]) -> bool:
    low = args[1] if len(args) > 1 else kwargs.get("min")
    return isinstance(low, int | float) and low == 0


class _Shallow(Tracer):
    """Traces one module, without what is below."""

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return True


def _graph(module: nn.Module, own: str) -> Graph:
    """The graph of a module, the same in training and in evaluation."""
    why = f"{own} calls ReLUs as functions or one nn.ReLU several times"
    fix = "give every call an nn.ReLU of its own in its __init__"
    twin = copy.deepcopy(module)
    try:
        graph, training = _trace(module, False), _trace(twin, True)
    except Exception as error:
        raise ValueError(f"{why}, and torch.fx cannot trace it ({type(error).__name__}: {error}); {fix}") from error
    constants = [node.target for node in graph.nodes if node.op == "get_attr" and "_constant" in node.target]
    if str(graph) != str(training) or any(
        not torch.equal(getattr(module, name), getattr(twin, name)) for name in constants
    ):
        raise ValueError(
            f"{why}, and does something else in training than in evaluation, so that no graph can stand for it; {fix}"
        )
    return graph


def _trace(module: nn.Module, training: bool) -> Graph:
    modes = [(part, part.training) for part in module.modules()]
    module.train(training)
    parameters = inspect.signature(module.forward).parameters
    absent = {name: None for name, parameter in parameters.items() if parameter.default is None}
    try:
        return _Shallow().trace(module, absent)
    finally:
        for part, mode in modes:
            part.training = mode


def _activation_of(node: Node, module: nn.Module) -> nn.Module | None:
    """A ReLU of its own for a node that calls one; None for other nodes."""
    if node.op == "call_module":
        called = module.get_submodule(node.target)
        return copy.deepcopy(called) if isinstance(called, RELUS) else None
    kind = {"call_function": _FUNCTIONS, "call_method": _METHODS}.get(node.op, {}).get(node.target)
    return kind() if kind else None


def _name_for(node: Node, module: nn.Module, used: set[str]) -> str:
    """The name of the ReLU that is called, for its first call here; then the name with a number."""
    wanted = node.target.replace(".", "_") if node.op == "call_module" else "relu"
    if node.op == "call_module" and wanted in module._modules and wanted not in used:
        return wanted
    number, name = 1, wanted
    while hasattr(module, name):
        number += 1
        name = f"{wanted}_{number}"
    return name


def _with_forward(base: type[nn.Module], source: str, names: Mapping[str, Any]) -> type[nn.Module]:
    """A subclass with another forward method, which can be copied and pickled although nobody can import it."""
    scope = dict(names)
    exec(source, scope)

    def reduce(self: nn.Module, protocol: int) -> tuple:
        modules = {key: value.__name__ for key, value in names.items() if isinstance(value, types.ModuleType)}
        others = {key: value for key, value in names.items() if key not in modules}
        return _rebuild, (base, source, others, modules), self.__dict__

    members = {"forward": scope["forward"], "__reduce_ex__": reduce, "__module__": base.__module__}
    return type(base.__name__, (base,), members | {"__doc__": base.__doc__})


def _rebuild(base: type[nn.Module], source: str, others: Mapping[str, Any], modules: Mapping[str, str]) -> nn.Module:
    import importlib

    names = dict(others) | {key: importlib.import_module(name) for key, name in modules.items()}
    kind = _with_forward(base, source, names)
    return kind.__new__(kind)
