"""The page of a review: Starlette with templates of the server, on loopback, for one person at a time.

Starlette and Jinja2 rather than a framework that keeps a page alive over a socket: every step is a plain form, so that
it works by keyboard, survives a restart of the server, and can be tested without a browser.

What it trusts: nobody who does not hold the token that the command prints. The token opens one session, which is a
cookie of this browser; every form carries a second secret of it. Requests for another host name (DNS rebinding), forms
from another origin (CSRF) and unknown sessions are refused. The page loads nothing from elsewhere, and no browser
keeps what it has shown.
"""

import hmac
import secrets
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedmend.errors import FedMendError
from fedmend.repairs.verdicts import JudgedMeanwhile, Verdict, check_reviewer
from fedmend.review.desk import ALL, JUDGED, OPEN, ORDERS, OWN, REPAIRS, Choice, Desk, Item
from fedmend.review.maps import Maps
from fedmend.review.shown import Shown

HERE = Path(__file__).parent
PAGE = 50  # items on a page of the queue
LARGEST_FORM = 20_000  # bytes
LONGEST_PATH = 200  # characters; a number in it has fewer digits than Python refuses to read
# A redirection would count as a step of the page where the link was clicked, from which browsers send no strict cookie.
GO_ON = '<!doctype html><title>Review</title><meta http-equiv="refresh" content="0; url={0}"><a href="{0}">Go on</a>'
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self'; style-src 'self'; script-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",  # with none at all, browsers hide the origin of a form
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def _cookie_name(request: Request) -> str:
    """Browsers send a cookie to all ports of a host: the pages of two reviews need two."""
    return f"fedmend_review_{request.url.port}"


def _cookie(request: Request) -> str:
    return request.cookies.get(_cookie_name(request), "")


class Session:
    """The one session of a server: its token before, its cookie afterwards."""

    def __init__(self) -> None:
        self.token: str | None = secrets.token_urlsafe(24)
        self.form = secrets.token_urlsafe(24)
        self._cookie = secrets.token_urlsafe(24)
        self._lock = threading.Lock()

    def open(self, token: str) -> str | None:
        """The cookie for the first one who brings the token."""
        with self._lock:
            if self.token is None or not hmac.compare_digest(self.token.encode(), token.encode()):
                return None
            self.token = None
            return self._cookie

    def is_mine(self, cookie: str) -> bool:
        """Whether a browser holds the session."""
        return hmac.compare_digest(self._cookie.encode(), cookie.encode())


class Guard:
    """Lets requests of the session pass, and puts the headers on all answers; a plain ASGI middleware."""

    def __init__(self, app: ASGIApp, session: Session, hosts: Callable[[], set[str]]):
        self._app, self._session, self._hosts = app, session, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, as Starlette asks of middleware."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name.lower() for name, _ in message["headers"]}
                extra = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                new = [header for header in extra if header[0] not in known]
                message = {**message, "headers": [*message["headers"], *new]}
            await send(message)

        refused = self._refusal(Request(scope))
        await (refused or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if host not in self._hosts():
            return PlainTextResponse("expected a request for this machine itself, got one for another host name", 421)
        if len(request.scope["path"]) > LONGEST_PATH:
            return PlainTextResponse("expected an address of this page, got a longer one", 404)
        if "transfer-encoding" in request.headers:  # its length would count, not the one that is said
            return PlainTextResponse("expected a request that says its length, got one in pieces", 411)
        if request.method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("expected GET or POST", 405)
        if request.method == "POST" and request.headers.get("origin", "") != f"http://{host}":
            return PlainTextResponse("expected a form of this page, got one from another origin", 403)
        if request.scope["path"] != "/" and not self._session.is_mine(_cookie(request)):
            return PlainTextResponse("expected the browser that opened the link; start fedmend review again", 403)
        return None


def review_app(desk: Desk, session: Session, hosts: Callable[[], set[str]]) -> Starlette:
    """The application.

    Args:
        desk: what is reviewed.
        session: whoever brings its token holds it.
        hosts: names and ports by which the server may be called; asked at every request.
    """
    pages = Pages(desk, session)
    routes = [
        Route("/", pages.start),
        Route("/hello", pages.hello, methods=["GET", "POST"]),
        Route("/queue", pages.queue),
        Route("/next", pages.next),
        Route("/item/{sample:int}/{label_class:int}", pages.item),
        Route("/judge/{sample:int}/{label_class:int}", pages.judge, methods=["POST"]),
        Route("/picture/{number:int}.png", pages.picture),
        Route("/outline/{sample:int}/{label_class:int}/{which}.png", pages.outline),
        Route("/map/{sample:int}/{label_class:int}.png", pages.map),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]
    errors = {FedMendError: pages.problem, HTTPException: pages.problem}
    guard = Middleware(Guard, session=session, hosts=hosts)
    return Starlette(routes=routes, middleware=[guard], exception_handlers=errors)


class Pages:
    """The pages of one desk."""

    def __init__(self, desk: Desk, session: Session):
        self._desk, self._session, self._shown, self._maps = desk, session, Shown(desk), Maps(desk)
        self._reviewer = ""
        self._last: Verdict | None = None
        self._notes: dict[tuple[int, int], str] = {}  # of verdicts that were refused or taken back, for the next try
        self._templates = Jinja2Templates(directory=HERE / "templates")

    def _page(self, request: Request, name: str, status: int = 200, **words: object) -> Response:
        desk = self._desk
        common = {"run": desk.run, "site": desk.site, "phantom": desk.card.phantom, "reviewer": self._reviewer}
        common |= {"classes": desk.classes, "form": self._session.form, "masks": desk.masks, "last": self._last}
        return self._templates.TemplateResponse(request, f"{name}.html", {**common, **words}, status_code=status)

    def problem(self, request: Request, error: Exception) -> Response:
        """A page with one sentence."""
        status = error.status_code if isinstance(error, HTTPException) else 409
        words = error.detail if isinstance(error, HTTPException) else str(error)
        return self._page(request, "problem", status, sentence=words)

    def start(self, request: Request) -> Response:
        """Takes the token once, and leaves the cookie."""
        token = request.query_params.get("token", "")
        cookie = self._session.open(token) if token else None
        if cookie is None and not self._session.is_mine(_cookie(request)):
            return PlainTextResponse("expected the link that fedmend review printed, which opens one browser once", 403)
        where = "/queue" if self._reviewer else "/hello"
        if cookie is None:
            return RedirectResponse(where, 303)
        answer = HTMLResponse(GO_ON.format(where))
        answer.set_cookie(_cookie_name(request), cookie, httponly=True, samesite="strict")
        return answer

    async def hello(self, request: Request) -> Response:
        """Asks for initials."""
        if request.method == "GET":
            return self._page(request, "hello")
        form = await self._form(request)
        try:
            self._reviewer = check_reviewer(str(form.get("reviewer", "")))
        except FedMendError as e:
            return self._page(request, "hello", 422, sentence=str(e))
        return RedirectResponse("/queue", 303)

    async def _form(self, request: Request) -> FormData:
        if int(request.headers.get("content-length") or LARGEST_FORM + 1) > LARGEST_FORM:
            raise HTTPException(413, f"expected a form of at most {LARGEST_FORM} bytes, got a larger one")
        form = await request.form()
        if not hmac.compare_digest(str(form.get("form", "")).encode(), self._session.form.encode()):
            raise HTTPException(403, "expected a form of this session, got another; open the page again")
        return form

    def queue(self, request: Request) -> Response:
        """The items of a choice, page by page."""
        choice, items = _choice(request), self._desk.items()
        found = self._desk.queue(choice, items)
        pages = max(1, -(-len(found) // PAGE))
        page = min(_number(request, "page", 0), pages - 1)  # the queue may have become shorter since
        return self._page(
            request,
            "queue",
            lines=[self._shown.line(item) for item in found[page * PAGE : (page + 1) * PAGE]],
            count=len(found),
            page=page,
            pages=pages,
            choice=choice,
            link=_link(choice),
            orders=list(ORDERS),
            whats=[ALL, REPAIRS, OWN],
            states=[OPEN, JUDGED, ALL],
            rounds=sorted({item.round_num for item in items if item.rule}),
            done=sum(item.judged for item in items),
            total=len(items),
        )

    def next(self, request: Request) -> Response:
        """The first item of a choice, or the one behind another."""
        after = _number(request, "sample", -1), _number(request, "class", -1)
        return RedirectResponse(self._following(_choice(request), after), 303)

    def item(self, request: Request) -> Response:
        """One label, with its image."""
        choice, items = _choice(request), self._desk.items()
        item = self._item(request)
        found = [(i.sample, i.label_class) for i in self._desk.queue(choice, items)]
        place = found.index((item.sample, item.label_class)) if (item.sample, item.label_class) in found else None
        return self._page(
            request,
            "item",
            item=item,
            line=self._shown.line(item),
            picture=self._shown.about(item.sample),
            note=self._notes.get((item.sample, item.label_class), ""),
            place=place,
            count=len(found),
            link=_link(choice),
            done=sum(i.judged for i in items),
            total=len(items),
            one_label=self._desk.kind.one_label,
            map_problem=self._maps.problem,
        )

    def _item(self, request: Request) -> Item:
        sample, label_class = request.path_params["sample"], request.path_params["label_class"]
        if not (sample < len(self._desk.data.train) and label_class < len(self._desk.classes)):
            raise HTTPException(404, "expected the number of a sample and a class, got others")
        return self._desk.item(sample, label_class)

    async def judge(self, request: Request) -> Response:
        """Writes a verdict, and goes on to the next item.

        Raises:
            FedMendError: a verdict that cannot be; the page says it.
        """
        form = await self._form(request)
        if not self._reviewer:
            raise HTTPException(409, "expected your initials first; go to /hello")
        item, choice = self._item(request), _choice(request)
        word, note = str(form.get("word", "")), str(form.get("note", "")).replace("\r", "")
        following = self._following(choice, (item.sample, item.label_class))
        text, seen = str(form.get("value", "")), str(form.get("seen", ""))
        if note:
            self._notes[item.sample, item.label_class] = note
        try:
            if form.get("shown", item.shown) != item.shown:
                raise JudgedMeanwhile("verdict: expected a label as it was shown, it was repaired anew; look again")
            if form.get("reviewer", self._reviewer) != self._reviewer:
                raise JudgedMeanwhile("verdict: expected the initials that the page shows, got others; look again")
            if word == "back":
                self._desk.take_back(item, reviewer=self._reviewer, seen=seen)
                self._last = None
            else:
                value = int(text) if word == "relabel" and _is_number(text) else None
                if word == "relabel" and value is None:
                    raise FedMendError("verdict, label: expected one of the job's, got another")
                self._last = self._desk.judge(item, word, reviewer=self._reviewer, note=note, value=value, seen=seen)
                self._notes.pop((item.sample, item.label_class), None)
        except JudgedMeanwhile as e:
            return self._page(request, "problem", 409, sentence=str(e), back=request.url.path.replace("judge", "item"))
        here = f"/item/{item.sample}/{item.label_class}?{_link(choice)}"
        return RedirectResponse(here if word == "back" else following, 303)

    def _following(self, choice: Choice, after: tuple[int, int]) -> str:
        """Address of what comes after a sample and class in the queue as it is now; of the first if it lacks them."""
        found = [(i.sample, i.label_class) for i in self._desk.queue(choice)]
        place = found.index(after) + 1 if after in found else 0
        if place >= len(found):
            return f"/queue?{_link(choice)}"
        return f"/item/{found[place][0]}/{found[place][1]}?{_link(choice)}"

    def picture(self, request: Request) -> Response:
        """A picture of a sample through a window."""
        window, number = [_decimal(request, name) for name in ("centre", "width")], request.path_params["number"]
        if number >= self._shown.count:
            raise HTTPException(404, "expected the number of a sample, got another")
        return self._png(lambda: self._shown.png(number, *window))

    def outline(self, request: Request) -> Response:
        """Original or changed marks of a slice, to lay over its image."""
        label_class, which = request.path_params["label_class"], request.path_params["which"]
        return self._png(lambda: self._shown.outline(self._sample(request), label_class, which))

    def map(self, request: Request) -> Response:
        """Where the model looked, to lay over the image."""
        return self._png(lambda: self._maps.png(self._sample(request), request.path_params["label_class"]))

    def _sample(self, request: Request) -> int:
        sample = request.path_params["sample"]
        if sample >= len(self._desk.data.train):
            raise HTTPException(404, "expected the number of a sample, got another")
        return sample

    def _png(self, make: Callable[[], bytes]) -> Response:
        from fedmend.data.raw import UnreadableImage
        from fedmend.review.pictures import picture_problem

        try:
            return Response(make(), media_type="image/png")
        except (UnreadableImage, OSError, FedMendError) as e:
            return PlainTextResponse(f"image: {picture_problem(e)}", 404)


def _choice(request: Request) -> Choice:
    """The choice in an address; what is unknown in it is as by default."""
    query, usual = request.query_params, Choice()
    known = {"what": (ALL, REPAIRS, OWN), "state": (OPEN, JUDGED, ALL), "order": tuple(ORDERS)}
    words = {k: query[k] for k, allowed in known.items() if query.get(k) in allowed}
    label_class, round_num = (_number(request, k, getattr(usual, k)) for k in ("label_class", "round_num"))
    return replace(usual, **words, label_class=label_class, round_num=round_num)


def _link(choice: Choice) -> str:
    return urlencode({k: v for k, v in vars(choice).items() if v != getattr(Choice, k)})


def _number(request: Request, name: str, usual: int) -> int:
    text = request.query_params.get(name, "")
    return int(text) if _is_number(text) else usual


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) < 10


def _decimal(request: Request, name: str) -> float | None:
    try:
        return float(request.query_params[name])
    except (KeyError, ValueError):
        return None
