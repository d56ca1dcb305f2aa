// Hides what means nothing for the chosen strategy, unless it holds an error.
document.addEventListener("DOMContentLoaded", () => {
    const strategy = document.getElementById("id_strategy");
    if (!strategy) return;
    const show = () => {
        for (const part of document.querySelectorAll(".pilotage-scored")) {
            const hidden = strategy.value !== "dynamic_score" && !part.querySelector(".errorlist");
            part.classList.toggle("pilotage-hidden", hidden);
        }
    };
    strategy.addEventListener("change", show);
    show();
});
