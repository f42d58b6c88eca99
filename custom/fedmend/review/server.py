"""Serves the page of a review on loopback until somebody stops it."""

import socket
from collections.abc import Callable

from fedmend.basics.words import say
from fedmend.errors import FedMendError, not_installed
from fedmend.review.desk import Desk

LOOPBACK = "127.0.0.1"


def serve(desk: Desk, *, port: int = 0, show: Callable[[str], None] = say) -> None:
    """Answers requests of one browser on this machine.

    Args:
        desk: what is reviewed.
        port: of the server; 0: any free one.
        show: gets the link, whose token opens one browser once.

    Raises:
        FedMendError: packages of the page are not installed, or the port is taken.
    """
    try:
        import uvicorn

        from fedmend.review.app import Session, review_app
    except ImportError as e:
        raise FedMendError(f"review: {not_installed(str(e.name), 'review')}") from None
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just given back is free
    try:
        listener.bind((LOOPBACK, port))
        listener.listen()  # a browser that is quicker than the server waits
    except OSError:
        raise FedMendError(f"--port: expected a free port, {port} is taken or not allowed") from None
    number, session = listener.getsockname()[1], Session()
    hosts = {f"{LOOPBACK}:{number}", f"localhost:{number}"}
    app = review_app(desk, session, lambda: hosts)
    config = uvicorn.Config(app, log_level="error", access_log=False, lifespan="off", server_header=False)
    show(f"run {desk.run}, {desk.site}: open this link in a browser on this machine; it opens one browser once")
    show(f"http://{LOOPBACK}:{number}/?token={session.token}")
    show("Ctrl-C ends it; verdicts are kept")
    with listener:
        uvicorn.Server(config).run(sockets=[listener])
