# SPDX-License-Identifier: Apache-2.0
"""Every model_type of the transformers that python/tests/requirements.txt names: known here, refused, or out of scope. A type is
known when its file is read and python/tests/model_compare.py found its attention equal; the others stand here, with the reason.
test_torch_models.py holds that each type stands in one place. scripts/model_table.py writes docs/models.md from it."""

# There is nothing for this library in them.
OUT_OF_SCOPE = {
    "a config without a model of its own in transformers": """
        layoutxlm mimi_decoder mimi_encoder nougat pocket_tts_audio_tokenizer_decoder pocket_tts_audio_tokenizer_encoder
        pp_chart2table_vision vibevoice_acoustic_tokenizer_decoder vibevoice_acoustic_tokenizer_encoder""",
    "mamba or rwkv in every layer; the file is read, and its layers are listed as out of scope": """
        falcon_mamba mamba mamba2 rwkv""",
    "no softmax attention: convolutions, codecs, Fourier transforms, recurrence": """
        bit convnext convnextv2 dac dinov3_convnext efficientnet encodec fnet focalnet hgnet_v2 mobilenet_v1
        mobilenet_v2 poolformer pp_lcnet pp_lcnet_v3 pp_lcnet_v4 regnet resnet textnet univnet uvdoc_backbone
        vibevoice_acoustic_tokenizer xlstm""",
}

# Files of these types are refused, by model_type.
REFUSED = {
    "a bias by relative position is added to the scores": """
        inkling_mm_model inkling_text""",
    "a bias of relative positions is added to the scores, or may be": """
        beit clap_audio_model clap_text_model cpmant data2vec-audio data2vec-vision deberta deberta-v2
        deepseek_ocr2_encoder deepseek_ocr2_sam_vision_model deepseek_ocr2_text donut-swin fastspeech2_conformer
        fastspeech2_conformer_hifigan funnel gemma3n_audio gemma3n_vision gemma4_audio got_ocr2_vision
        granite_speech5_encoder granite_speech_encoder granite_speech_plus_encoder inkling_audio inkling_vision
        layoutlmv2 layoutlmv3 maskformer-swin mpnet mt5 nemotron_asr_streaming_encoder parakeet_encoder
        phi4_multimodal_audio phi4_multimodal_vision pix2struct_text_model pix2struct_vision_model pop2piano
        pp_formulanet_text pp_formulanet_vision prophetnet sam_hq_mask_decoder sam_hq_prompt_encoder sam_hq_vision_model
        sam_mask_decoder sam_prompt_encoder sam_vision_model seamless_m4t seamless_m4t_v2 seggpt slanext_vision speecht5
        speecht5_hifigan swin swin2sr swinv2 switch_transformers t5 udop umt5 unlimited_ocr_sam_vision_model
        unlimited_ocr_text unlimited_ocr_vision_encoder vitdet vits wav2vec2-bert wav2vec2-conformer wavlm xlnet""",
    "a detector: deformable or cross attention of queries": """
        efficientloftr lw_detr_vit sam3_lite_text_text_model sam3_vit_model yolos""",
    "a part of a larger model; it cannot be made alone to be compared": """
        aimv2_text_model align_text_model align_vision_model altclip_text_model altclip_vision_model blip_2_vision_model
        blip_text_model blip_vision_model blt_global_transformer blt_local_decoder blt_local_encoder blt_patcher
        bridgetower_text_model bridgetower_vision_model canary_decoder chameleon_vqgan chinese_clip_text_model
        clipseg_text_model clipseg_vision_model clvp_decoder clvp_encoder csm_depth_decoder_model dia_decoder
        dia_encoder diffusion_gemma_text edgetam_mask_decoder edgetam_prompt_encoder edgetam_video_mask_decoder
        edgetam_video_prompt_encoder emu3_text_model emu3_vqgan eomt eomt_dinov3 ernie4_5_vl_moe_vision
        flava_image_codebook flava_image_model flava_multimodal_model flava_text_model gemma4_unified_audio
        gemma4_unified_vision git_vision_model granite4_vision_text groupvit_text_model groupvit_vision_model
        idefics2_perceiver idefics2_vision idefics_perciever idefics_vision instructblip_qformer
        instructblip_vision_model instructblipvideo_qformer instructblipvideo_vision_model janus_vision_model
        janus_vqgan kosmos_2_5_text_model kosmos_2_5_vision_model kosmos_2_text_model kosmos_2_vision_model
        metaclip_2_text_model metaclip_2_vision_model minicpmv4_6_vision minimax_m3_vl_vision mllama_text_model
        mllama_vision_model molmo2_adapter moonshine_streaming_encoder moshi_depth musicgen_decoder
        musicgen_melody_decoder owlv2_text_model owlv2_vision_model owlvit_text_model owlvit_vision_model
        paddleocr_vl_text paddleocr_vl_vision qwen2_5_omni_audio_encoder qwen2_5_omni_bigvgan qwen2_5_omni_dit
        qwen2_5_omni_talker qwen2_5_omni_text qwen2_5_omni_vision_encoder qwen3_omni_moe_audio_encoder
        qwen3_omni_moe_talker_code_predictor qwen3_omni_moe_talker_text qwen3_omni_moe_text
        qwen3_omni_moe_vision_encoder rag rf_detr_dinov2 rt_detr_resnet sam2_mask_decoder sam2_prompt_encoder
        sam2_video_mask_decoder sam2_video_prompt_encoder sam3_detr_decoder sam3_detr_encoder sam3_geometry_encoder
        sam3_lite_text_detr_decoder sam3_lite_text_detr_encoder sam3_lite_text_geometry_encoder
        sam3_lite_text_mask_decoder sam3_mask_decoder sam3_tracker_mask_decoder sam3_tracker_prompt_encoder
        sam3_tracker_video_mask_decoder sam3_tracker_video_prompt_encoder sapiens2_head siglip2_text_model
        siglip_text_model step3p5 step3p5_vision superpoint t5_gemma_module t5gemma2_decoder t5gemma2_text trocr
        vibevoice_diffusion videomt videoprism_text_model vitpose_backbone xclip_text_model xclip_vision_model""",
    "a shared block on two hidden states, with a scale of its own": """
        zamba zamba2""",
    "attention by blocks, hashes or samples of keys": """
        big_bird bigbird_pegasus led longformer longt5 mra nystromformer pegasus_x reformer sew-d squeezebert yoso""",
    "attention is written in the layer itself and has not been compared": """
        canine convbert flaubert ibert imagegpt luke megatron-bert mobilevit rembert roformer swiftformer tapas
        tipsv2_text_model vilt visual_bert xlm""",
    "attn_config of this kind is not read": """
        dbrx""",
    "differential attention: the difference of two softmaxes": """
        diffllama""",
    "encoder and decoder: only whisper is mapped": """
        autoformer blenderbot blenderbot-small florence_vision fsmt informer m2m_100 marian mbart moonshine mvp nllb-moe
        pegasus plbart speech_to_text time_series_transformer""",
    "heads are chosen by a router": """
        jetmoe""",
    "it has not been compared yet": """
        audio-spectrogram-transformer bart blip_2_qformer bros cohere_compass_vision cosmos3_edge_text
        cosmos3_edge_vision cvt decision_transformer dinat dinov3_vit dots3_note_audio_encoder dots3_note_text
        dots3_note_vision_encoder dpr embedding_gemma2_text ernie4_5_vl_moe_text esmc eurobert exaone4_5_vision
        fun_asr_nano_encoder gemma4_assistant glm5_next_text glm5_next_vision glm_image_text glm_image_vision
        glm_image_vqmodel glm_ocr_text glm_ocr_vision glmasr_encoder glpn granite_docling_text granite_docling_vision
        gte hiera higgs_audio_v2 hubert hunyuan_vl_text hunyuan_vl_vision hy_v4 inkling2_text inkling2_vision internlm3
        iquestcoder jev jina_embeddings_v3 kimi_k25_vision lasr_encoder levit lfm3 lfm3_vl_vision lilt lxmert mgp-str
        mimi minicpm_ocr_vision minicpmv4_7_vision minimax_m3_vl_text mistral_large4_text mlcd mlcd_vision_model
        mobilebert mobilevitv2 modernbert molmo2_text molmo2_vision moss_transcribe_diarize_audio muse_glimmer_assistant
        muse_glimmer_text muse_glimmer_vision muse_spark_audio muse_spark_text muse_spark_vision
        nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_word_timestamp nemotron3_diarization_audio neomme
        nomic_bert openai_privacy_filter patchtsmixer patchtst perceiver pixio pocket_tts_audio_tokenizer pvt pvt_v2
        qianfan_ocr_vision qwen3_asr_encoder qwen4_exp_text qwen4_exp_vision radio sam2_hiera_det_model segformer sew
        siglip2_vision_model timesfm timesfm2_5 timesformer timm_backbone timm_wrapper tipsv2_vision_model ultrabert
        unispeech unispeech-sat video_llama_3_vision videomae videoprism_vision_model vit_mae vivit vjepa2
        voxtral_realtime_encoder voxtral_realtime_text wav2vec2""",
    "keys are compressed on the way": """
        deepseek_v4""",
    "layers are named by block_types, which is not read": """
        recurrent_gemma""",
    "layers of this kind are not read": """
        zaya""",
    "layers that slide have KV heads and sinks of their own": """
        mimo_v2_flash""",
    "made of parts of which one is not known, or that have not been compared": """
        EvollaModel aimv2 align altclip bark blip blip-2 blt bridgetower canary chameleon chinese_clip chmv2 clap clip
        clipseg clvp cohere_asr cohere_compass colmodernvbert colpali colqwen2 conditional_detr cosmos3_edge
        cosmos3_omni csm d_fine dab-detr deepseek_ocr2 deepseek_ocr2_vision deepseek_vl_hybrid deformable_detr deimv2
        depth_anything depth_pro detr dia diffusion_gemma dots3_note dpt edgetam edgetam_video edgetam_vision_model
        embedding_gemma2 emu3 encoder-decoder ernie4_5_vl_moe esm esmfold2 evolla exaone4_5 fast_vlm
        fastspeech2_conformer_with_hifigan flava florence2 fun_asr_nano fuyu gemma3n gemma4_unified
        gemma4_unified_assistant git glm5_next glm_image glm_ocr glmasr glmga got_ocr2 gradium_phonon_tts
        granite4_vision granite_docling granite_speech granite_speech5_ctc granite_speech_plus grounding-dino groupvit
        higgs_audio_v2_tokenizer hunyuan_vl hyperclovax_vision_v2 idefics idefics2 inkling2 instructblip
        instructblipvideo janus kimi_k25 kosmos-2 kosmos-2.5 kyutai_speech_to_text lasr_ctc lfm2_vl lfm3_vl lightglue
        lw_detr mask2former maskformer metaclip_2 minicpm_ocr minicpmv4_6 minicpmv4_7 minimax_m3_vl mistral_large4
        mllama mm-grounding-dino modernvbert molmo2 moonshine_streaming moshi moss_transcribe_diarize muse_glimmer
        muse_spark musicflamingo musicgen musicgen_melody nemo_speechlm nemotron3_5_asr nemotron3_5_transcribe_audio
        nemotron3_diarization nemotron_asr_streaming nemotron_h_omni neucodec omdet-turbo oneformer owlv2 owlvit
        paddleocr_vl parakeet_ctc parakeet_rnnt parakeet_tdt pe_audio pe_audio_encoder pe_audio_video
        pe_audio_video_encoder pe_video pe_video_encoder perception_lm phi4_multimodal pi0 pix2struct pocket_tts
        pp_chart2table pp_doclayout_v2 pp_doclayout_v3 pp_doclayout_v4 pp_formulanet pp_ocrv5_mobile_det
        pp_ocrv5_mobile_rec pp_ocrv5_server_det pp_ocrv5_server_rec pp_ocrv6_medium_det pp_ocrv6_small_det
        pp_ocrv6_small_rec pp_ocrv6_tiny_rec prompt_depth_anything qianfan_ocr qwen2_5_omni qwen2_5_omni_thinker
        qwen2_5_omni_token2wav qwen3_asr qwen3_omni_moe qwen3_omni_moe_thinker qwen4_exp rf_detr rt_detr rt_detr_v2 sam
        sam2 sam2_video sam2_vision_model sam3 sam3_lite_text sam3_tracker sam3_tracker_video sam3_video
        sam3_vision_model sam_hq sapiens2 shieldgemma2 siglip siglip2 slanet slanext speech-encoder-decoder step3p7
        superglue t5gemma t5gemma2 t5gemma2_encoder table-transformer tipsv2 tipsv2_dpt tvp ultravbert unlimited_ocr
        unlimited_ocr_vision upernet uvdoc vibevoice vibevoice_asr video_llama_3 video_llava videoprism
        vision-encoder-decoder vision-text-dual-encoder vitmatte vitpose voxtral_realtime xclip xcodec xcodec2 zoedepth""",
    "one stack of layers runs several times, with a prefix that is not in the file": """
        hrm_text""",
    "the mask is computed from the values": """
        doge""",
}


def reasons(table):
    """type -> reason"""
    return {model_type: reason for reason, types in table.items() for model_type in types.split()}


BEGIN, END = "<!-- python3 scripts/model_table.py writes this -->", "<!-- to here -->"


def _words(types):
    return " ".join(f"`{x}`" for x in sorted(types))


def text(known, version):
    """The section of docs/models.md."""
    refused, out = reasons(REFUSED), reasons(OUT_OF_SCOPE)
    lines = [
        BEGIN, "",
        f"transformers {version} has {len(known) + len(refused) + len(out)} model types: {len(known)} are known here,"
        f" {len(refused)} refused, {len(out)} out of scope.", "",
        "| | types |", "|---|---|", f"| known | {_words(known)} |",
        *(f"| refused: {reason} | {_words(types.split())} |" for reason, types in REFUSED.items()),
        *(f"| out of scope: {reason} | {_words(types.split())} |" for reason, types in OUT_OF_SCOPE.items()), "", END,
    ]  # fmt: skip
    return "\n".join(lines)
