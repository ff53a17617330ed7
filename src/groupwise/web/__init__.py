"""What the pages share: scripts, styles and skeletons as files of their own, and how they become one page."""
