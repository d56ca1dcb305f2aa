// A day that is filled in makes the period one of its own; the server would not look at it otherwise.
document.addEventListener("input", (event) => {
    if (event.target.matches(".reports-filters [name=from], .reports-filters [name=to]")) {
        event.target.form.elements.period.value = "custom";
    }
});
