"""The sections of a report. To add one, write a function of the `Material` and list it in `report.SECTIONS`."""
