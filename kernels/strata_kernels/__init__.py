"""Operations: torch references, native CPU implementations and the choice between them."""
