"""What every HTML page of fedrec shares: its frame, its style sheet, and how it is written."""

from fedrec.html.page import page_environment, render_page, style_sheet, write_page

__all__ = ["page_environment", "render_page", "style_sheet", "write_page"]
