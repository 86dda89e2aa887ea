"""The service over HTTP: routes under /api/v1, who may use them, and the door that all requests come through.

    from melodeon.control.api import Auth, make_app
    app = make_app(controller, Auth.load(state_dir), host="127.0.0.1", port=8470)

Needs the extra `serve`.
"""

from melodeon.control.api.app import make_app
from melodeon.control.api.auth import Auth, User
from melodeon.control.api.errors import Forbidden, Unauthorized

__all__ = ["Auth", "Forbidden", "Unauthorized", "User", "make_app"]
