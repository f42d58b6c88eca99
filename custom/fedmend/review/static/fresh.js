"use strict";
// A page that the browser kept in memory, as behind its back button, is asked for again: labels may have been judged since.
window.addEventListener("pageshow", (event) => { if (event.persisted) window.location.reload(); });
