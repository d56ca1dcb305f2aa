// A long page that was refused opens at the first field at fault.
window.addEventListener("load", () => {
    const field = document.querySelector(".field-line .errorlist")?.closest(".field-line")?.querySelector("input, select, textarea");
    if (!field) return;
    field.focus({ preventScroll: true });
    field.closest(".field-line").scrollIntoView({ block: "center" });
});
