"""The dashboard: pages made by the server, kept alive by the cluster's stream of events.

    GET a page -> whole HTML; an event comes -> the page's script asks for the fragments that changed

May use the controller's answers and the API's ways of checking who asks; nothing here decides anything. Works without
scripts from elsewhere and under a policy that allows only our own (no inline script, no inline style). Whatever a job
writes (output, metrics, reasons) is text on a page, never markup.
"""

from melodeon.control.web.pages import router
from melodeon.control.web.site import error_page

__all__ = ["error_page", "router"]
