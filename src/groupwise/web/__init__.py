"""What people open in a browser: the report, the dashboard, and the assets of every page."""
