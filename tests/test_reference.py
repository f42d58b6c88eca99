"""What the reference says of every public name: what it does, the shapes of what it takes and gives, its errors.

The rules:

- Every public module, class, function and method has a docstring.
- Where an annotation names an array or tensor, the docstring has a shape: sizes in brackets, such as ``(N, C)``,
  or the words "any shape". Mappings of arrays are models, reports or counts, whose shapes their types say.
- Where the body of a function raises ``FedMendError``, its docstring has "Raises".
- A method that overrides one of ours may leave shapes and errors to the docstring of that one, or of its class. It
  needs none of its own when it has nothing to add: Python's help and the site show the docstring of that one.
"""

import ast
import re

from factories import ROOT

FOLDERS = (ROOT / "custom" / "fedmend", ROOT / "fl_components", ROOT / "provisioning")
FILES = [file for folder in FOLDERS for file in sorted(folder.rglob("*.py"))]
ARRAY = re.compile(r"\b(Tensor|ndarray)\b")
MAPPING = re.compile(r"\b(Mapping|dict)\[")
SIZE = r"[\w*.']+(?: (?:[+*]|or) [\w]+)*"  # such as C, 2C, F + 1, 1 or 3, size, *counts_shape, ...
SHAPE = re.compile(rf"\({SIZE}, ?\)|\({SIZE}(?:, {SIZE})+\)|\bany shape\b")
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def public(body):
    return [n for n in body if isinstance(n, FUNCTION | ast.ClassDef) and not n.name.startswith("_")]


def own(function):
    """The nodes of a function without functions inside it, and without what it catches itself."""
    queue = list(function.body)
    while queue:
        node = queue.pop()
        yield node
        caught = isinstance(node, ast.Try) and any("FedMendError" in ast.unparse(h.type or h) for h in node.handlers)
        if not isinstance(node, FUNCTION | ast.Lambda):
            queue += [n for n in ast.iter_child_nodes(node) if not (caught and n in node.body)]


def takes_or_gives_arrays(function):
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    found = [ast.unparse(a) for a in (*(a.annotation for a in arguments), function.returns) if a is not None]
    return any(ARRAY.search(a) and not MAPPING.search(a) for a in found)


def raises(function):
    raised = [n.exc for n in own(function) if isinstance(n, ast.Raise)]
    return any(isinstance(e, ast.Call) and ast.unparse(e.func) == "FedMendError" for e in raised)


def classes_of(*texts):
    """Name → class, of several modules; no two of ours that others are made from share a name."""
    return {n.name: n for text in texts for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ClassDef)}


def ancestors(cls, classes):
    for base in cls.bases:
        name = ast.unparse(base).split("[")[0].split(".")[-1]
        if name in classes and classes[name] is not cls:
            yield classes[name]
            yield from ancestors(classes[name], classes)


def said(node):
    return ast.get_docstring(node) or ""


def overridden(method, cls, classes):
    """The docstrings of the same method further up."""
    return [said(n) for up in ancestors(cls, classes) for n in up.body if getattr(n, "name", "") == method.name]


def gaps(text, classes):
    """What is missing in the docstrings of a module."""
    tree = ast.parse(text)
    found = [] if not tree.body or said(tree) else ["module: docstring"]
    methods = [(cls, n) for cls in public(tree.body) if isinstance(cls, ast.ClassDef) for n in public(cls.body)]
    for cls, node in [*((None, n) for n in public(tree.body)), *methods]:
        name = f"{cls.name}.{node.name}" if cls else node.name
        further_up = overridden(node, cls, classes) if cls else []
        if not said(node) and not any(further_up):
            found.append(f"{name}: docstring")
        elif isinstance(node, FUNCTION):
            words = "\n".join([said(node), *([said(cls)] if cls else []), *further_up])
            found += [f"{name}: shapes"] if takes_or_gives_arrays(node) and not SHAPE.search(words) else []
            found += [f"{name}: Raises"] if raises(node) and "Raises:" not in words else []
    return found


EXAMPLE = '''"""M."""
class Base:
    """B."""
    def a(self, x: Tensor):
        """(N, C) of what?"""
    def b(self):
        """B.

        Raises:
            FedMendError: always.
        """
        raise FedMendError("b")
class Child(Base):
    """C."""
    def a(self, x: Tensor):
        """Overrides."""
    def b(self):
        raise FedMendError("b")
    def c(self, x: Tensor | None):
        """New."""
    def d(self): ...
    def _hidden(self): ...
def f() -> np.ndarray:
    """Gives (N,) float32."""
def g(x: Mapping[str, np.ndarray]):
    """A model."""
    def inner():
        raise FedMendError("not g's own")
def h():
    """Raises, and does not say so."""
    raise FedMendError("h")
def i(): ...
def j():
    """Catches its own."""
    try:
        raise FedMendError("j")
    except FedMendError:
        return
'''


def test_the_reader_finds_what_is_missing_and_nothing_else():
    assert gaps(EXAMPLE, classes_of(EXAMPLE)) == ["h: Raises", "i: docstring", "Child.c: shapes", "Child.d: docstring"]


def test_every_public_name_says_what_it_does_with_shapes_and_errors():
    texts = {str(file.relative_to(ROOT)): file.read_text() for file in FILES}
    classes = classes_of(*texts.values())
    assert [f"{name}: {gap}" for name, text in texts.items() for gap in gaps(text, classes)] == []
