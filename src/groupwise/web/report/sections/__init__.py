"""The sections of a report. To add one, write a class with `title` and `render` and list it in `report.SECTIONS`."""
