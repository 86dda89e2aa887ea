// The address of this page holds a token: leave it without a trace in the history.
location.replace("/");
