"""The sections of a report, one file for each kind. A new one: a class with `title` and `render`, and a line in
`report.SECTIONS`."""
