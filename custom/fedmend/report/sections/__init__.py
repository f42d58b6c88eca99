"""Parts of the report, one module per subject: every module here that has a ``PART`` is found by itself.

A new method gets a page of its own by one new file; see :class:`fedmend.report.parts.Part`.
"""
